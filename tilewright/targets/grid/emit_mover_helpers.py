"""Functions of C++ that kernels which move data call; each is printed once above a kernel that needs it."""

from __future__ import annotations

LOCAL = """\
// A number of a semaphore in this core's memory.
inline volatile tt_l1_ptr uint32_t* local(uint32_t address) {
    return reinterpret_cast<volatile tt_l1_ptr uint32_t*>(address);
}
"""
CORE_ADDRESS = """\
// An address in the memory of a core of the program.
inline uint64_t core_address(uint32_t row, uint32_t column, uint32_t address) {
    return get_noc_addr(
        get_common_arg_val<uint32_t>(noc_x_arguments + column),
        get_common_arg_val<uint32_t>(noc_y_arguments + row),
        address);
}
"""
RECTANGLE_ADDRESS = """\
// An address in the memories of a rectangle of cores of the program. Network 1 goes up and to the left, and so its
// rectangles begin at the last corner.
inline uint64_t rectangle_address(
    uint32_t first_row, uint32_t first_column, uint32_t last_row, uint32_t last_column, uint32_t address) {
    const uint32_t first_x = get_common_arg_val<uint32_t>(noc_x_arguments + first_column);
    const uint32_t first_y = get_common_arg_val<uint32_t>(noc_y_arguments + first_row);
    const uint32_t last_x = get_common_arg_val<uint32_t>(noc_x_arguments + last_column);
    const uint32_t last_y = get_common_arg_val<uint32_t>(noc_y_arguments + last_row);
    return noc_index == 0 ? get_noc_multicast_addr(first_x, first_y, last_x, last_y, address)
                          : get_noc_multicast_addr(last_x, last_y, first_x, first_y, address);
}
"""
ZERO_PAGE = """\
inline void zero_page(uint32_t address, uint32_t bytes) {
    auto* const words = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(address);
    for (uint32_t i = 0; i < bytes / 4; ++i) {
        words[i] = 0;
    }
}
"""
IN_TILE = """\
// Where an element of a device tile is: four faces of 16 x 16 follow one another.
inline uint32_t in_tile(uint32_t row, uint32_t column) {
    return (row / 16 * 2 + column / 16) * 256 + row % 16 * 16 + column % 16;
}
"""
STORE = """\
template <typename Element>
inline void store(uint32_t address, Element value) {
    *reinterpret_cast<volatile tt_l1_ptr Element*>(address) = value;
}
"""
LOAD = """\
template <typename Element>
inline Element load(uint32_t address) {
    return *reinterpret_cast<volatile tt_l1_ptr Element*>(address);
}
"""
INSIDE_OF = """\
// How many rows or columns of a page are inside of an array that has so many.
inline uint32_t inside_of(uint32_t size, int32_t page) {
    const int32_t left = static_cast<int32_t>(size) - 32 * page;
    return page < 0 || left < 0 ? 0 : left < 32 ? left : 32;
}
"""
FILL_RUN = """\
// Stores a number to elements that follow one another, in words as far as they are whole ones.
template <typename Element>
inline void fill_run(uint32_t address, uint32_t count, Element fill) {
    constexpr uint32_t in_word = 4 / sizeof(Element);
    for (; count % in_word != 0; --count, address += sizeof(Element)) {
        store<Element>(address, fill);
    }
    const uint32_t word = sizeof(Element) == 2 ? fill * 0x10001u : fill;
    for (; count != 0; count -= in_word, address += 4) {
        store<uint32_t>(address, word);
    }
}
"""
PAD_PAGE = """\
// Stores a number to the elements of a page beyond some rows and columns; a row of it is in two faces.
template <typename Element>
inline void pad_page(uint32_t address, uint32_t rows, uint32_t columns, Element fill) {
    for (uint32_t row = 0; row < 32; ++row) {
        for (uint32_t column = row < rows ? columns : 0; column < 32; column = (column / 16 + 1) * 16) {
            fill_run<Element>(address + in_tile(row, column) * sizeof(Element), 16 - column % 16, fill);
        }
    }
}
"""
READ_ELEMENT = """\
// Transfers from DRAM are of aligned pieces: the one that was read last is held.
struct Piece {{
    uint32_t page = 0xFFFFFFFF;
    uint32_t begin = 0;
}};

template <typename Element, typename Array>
inline Element read_element(const Array& array, uint32_t page, uint32_t place, uint32_t scratch, Piece& held) {{
    constexpr uint32_t piece_bytes = {piece};
    const uint32_t offset = place * sizeof(Element);
    const uint32_t begin = offset / piece_bytes * piece_bytes;
    const uint32_t here = (scratch + piece_bytes - 1) / piece_bytes * piece_bytes;
    if (page != held.page || begin != held.begin) {{
        noc_async_read(array.get_noc_addr(page, begin), here, piece_bytes);
        noc_async_read_barrier();
        held = {{page, begin}};
    }}
    return load<Element>(here + offset - begin);
}}
"""
WRITE_ELEMENT = """\
// The lowest four bits of where a transfer comes from and goes to are the same; the one before has left its place.
template <typename Element, typename Array>
inline void write_element(const Array& array, uint32_t page, uint32_t place, Element value, uint32_t scratch) {
    const uint64_t there = array.get_noc_addr(page, place * sizeof(Element));
    const uint32_t here = (scratch + 15) / 16 * 16 + static_cast<uint32_t>(there) % 16;
    noc_async_writes_flushed();
    store<Element>(here, value);
    noc_async_write(here, there, sizeof(Element));
}
"""
FLOAT_BITS = """\
inline uint32_t float_bits(int32_t number) { return __builtin_bit_cast(uint32_t, static_cast<float>(number)); }
"""
BFLOAT_BITS = """\
// Rounded to nearest even.
inline uint16_t bfloat16_bits(int32_t number) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(number));
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
"""
FLOAT_KEY = """\
// Numbers in order as unsigned integers: zeros are the same, and so are all that are not a number.
inline uint32_t float_key(uint32_t bits, uint32_t nan) {
    const uint32_t size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) {
        return nan;
    }
    if (size == 0) {
        return 0x80000000;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000;
}
"""
ROUNDED_BFLOAT = """\
// Rounded to nearest even.
inline uint16_t rounded_bfloat16(float number) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, number);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) {
        return bits >> 16 | 0x40;
    }
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
"""
