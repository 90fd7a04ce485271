//! The arguments of a call.

use std::ptr::null_mut;

use super::Program;
use super::interface::{Call, Fields, Handle, OK};

/// A struct with room for any size that the library accepts.
pub type Struct = Box<[u64; 1024]>;

/// Numbers that overflow, wrap, or are invalid. The small ones are valid. Numbers in between are left out, because a caller may really have
/// that much memory.
pub const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    3,
    17,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    1 << 62,
    0x7fc0_0000_7fc0_0000,
    0xff80_0000_ff80_0000,
    u32::MAX as u64,
];

/// The bytes of one call's arguments.
pub struct Arguments<'a>(pub &'a [u8]);

impl Arguments<'_> {
    pub fn next(&mut self) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first)
    }

    /// Returns a handle of `live` or something that is not a live handle of that kind, and whether it is live.
    pub fn handle(&mut self, live: &[Handle], program: &Program) -> (Handle, bool) {
        let freed = program.freed.last().copied().unwrap_or(null_mut());
        match self.next() {
            248 => (null_mut(), false),
            249 => (freed, false),
            250 => (std::ptr::without_provenance_mut(0x1234_5679), false),
            251 => ((&raw const *program).cast_mut().cast(), false),
            n => match live.get(n % live.len().max(1)) {
                Some(&handle) => (handle, true),
                None => (null_mut(), false),
            },
        }
    }

    /// Returns a struct with defaults, in which one number may be changed.
    pub fn fields(
        &mut self,
        kind: (usize, Fields),
        init: Option<unsafe extern "C" fn(*mut u64, usize) -> Call>,
    ) -> Struct {
        let (size, fields) = kind;
        let mut made = Box::new([0; 1024]);
        made[0] = size as u64;
        if let Some(init) = init {
            // SAFETY: `made` has room for `size` bytes.
            assert_eq!(unsafe { init(made.as_mut_ptr(), size) }, OK);
        }
        let (field, number) = (self.next(), self.next());
        if field > 0 {
            let (at, width) = fields[field % fields.len()];
            let number = NUMBERS[number % NUMBERS.len()].to_le_bytes();
            let bytes: &mut [u8] = bytes_of(&mut made);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        made
    }

    /// Returns a pointer to `at`, NULL, or a misaligned pointer, and whether the pointer is valid.
    pub fn place<T>(&mut self, at: *mut T) -> (*mut T, bool) {
        match self.next() {
            252 => (null_mut(), false),
            253 if align_of::<T>() > 1 => (at.wrapping_byte_add(1), false),
            _ => (at, true),
        }
    }
}

fn bytes_of(numbers: &mut [u64; 1024]) -> &mut [u8] {
    // SAFETY: these are the bytes of initialized numbers, and any bytes are valid numbers.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), 8192) }
}
