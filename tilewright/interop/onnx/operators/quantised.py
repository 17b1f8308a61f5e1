"""quantised"""
