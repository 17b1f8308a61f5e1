"""resampling"""
