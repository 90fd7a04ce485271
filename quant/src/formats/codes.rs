//! Packing of the codes of blocks of 32 numbers, independent of the scale of a block ([`Scaled`](super::scaled::Scaled),
//! [`Affine`](super::affine::Affine)).

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "x86_64")]
use crate::simd::register::Avx512;
use crate::simd::register::Register;

/// 32 packed codes.
pub(crate) trait Codes: Pod {
    /// Added to signed codes to make them unsigned.
    const OFFSET: i8;
    /// The largest unsigned code, if it is below 64.
    const LARGEST: u8 = 63;
    /// Whether products on AVX2 need signed codes, since unsigned codes may exceed 63.
    const SIGNED: bool = false;
    /// Whether unpacking looks up values with shuffles; then scales should be loaded without shuffles.
    #[cfg(target_arch = "x86_64")]
    const LOOKS_UP: bool = false;

    /// Packs codes, which are unsigned codes or indices of values.
    fn pack(codes: [u8; 32]) -> Self;

    /// Unpacks the first and the last 16 unsigned codes of each block.
    ///
    /// # Safety
    /// As for [`Register::load`].
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R);

    /// Like [`Codes::unpack`], with the offset subtracted.
    ///
    /// # Safety
    /// As for [`Register::load`].
    #[inline(always)]
    unsafe fn unpack_signed<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { Self::unpack::<R, N>(blocks) };
        (
            first.minus(Self::OFFSET as u8),
            second.minus(Self::OFFSET as u8),
        )
    }

    /// Unpacks the signed codes.
    #[inline(always)]
    fn signed(&self) -> [i8; 32] {
        // SAFETY: the scalar register needs no CPU features.
        bytemuck::cast::<[[u8; 16]; 2], _>(
            unsafe { Self::unpack_signed::<[u8; 16], 1>([self]) }.into(),
        )
    }
}

/// Four-bit codes plus `OFFSET`: the low halves of the bytes are codes 0..16, the high halves codes 16..32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Nibbles<const OFFSET: i8>(pub(crate) [u8; 16]);

// SAFETY: consists of bytes only.
unsafe impl<const OFFSET: i8> Zeroable for Nibbles<OFFSET> {}
// SAFETY: consists of bytes only.
unsafe impl<const OFFSET: i8> Pod for Nibbles<OFFSET> {}

impl<const OFFSET: i8> Codes for Nibbles<OFFSET> {
    const OFFSET: i8 = OFFSET;
    const LARGEST: u8 = 15;

    fn pack(codes: [u8; 32]) -> Self {
        Nibbles(low_bits(codes))
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        unsafe { R::load(blocks.map(|block| block.0)) }.nibbles()
    }
}

/// Packs the low four bits of codes i and i + 16 into byte i.
pub(crate) fn low_bits(codes: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4)
}

/// Five-bit codes plus `OFFSET`: the fifth bits of all codes as one 32-bit number, then the other four bits as in [`Nibbles`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FiveBits<const OFFSET: i8> {
    high: [u8; 4],
    low: [u8; 16],
}

// SAFETY: consists of bytes only.
unsafe impl<const OFFSET: i8> Zeroable for FiveBits<OFFSET> {}
// SAFETY: consists of bytes only, without padding.
unsafe impl<const OFFSET: i8> Pod for FiveBits<OFFSET> {}

impl<const OFFSET: i8> Codes for FiveBits<OFFSET> {
    const OFFSET: i8 = OFFSET;
    const LARGEST: u8 = 31;

    fn pack(codes: [u8; 32]) -> Self {
        let fifth = (0..32).fold(0, |bits, i| bits | u32::from(codes[i] >> 4 & 1) << i);
        FiveBits {
            high: fifth.to_le_bytes(),
            low: low_bits(codes),
        }
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        let fifth = blocks.map(|block| &block.high);
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { R::load(blocks.map(|block| block.low)) }.nibbles();
        (
            first.plus_where::<0>(fifth, 16),
            second.plus_where::<1>(fifth, 16),
        )
    }
}

/// Signed bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct SignedBytes(pub(crate) [i8; 32]);

impl Codes for SignedBytes {
    const OFFSET: i8 = -128;
    const SIGNED: bool = true;

    fn pack(codes: [u8; 32]) -> Self {
        SignedBytes(codes.map(|code| code.wrapping_sub(128) as i8))
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { Self::unpack_signed::<R, N>(blocks) };
        // Subtracting 128 equals adding 128, modulo 256.
        (first.minus(128), second.minus(128))
    }

    #[inline(always)]
    unsafe fn unpack_signed<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        let half =
            |half: usize| blocks.map(|block| bytemuck::cast::<_, [[u8; 16]; 2]>(block.0)[half]);
        // SAFETY: guaranteed by the caller.
        unsafe { (R::load(half(0)), R::load(half(1))) }
    }
}

/// Sixteen values, indexed by four-bit codes.
pub(crate) trait Table: Copy + 'static {
    /// The values.
    const VALUES: [i8; 16];
    /// See [`Codes`].
    const OFFSET: i8;
    /// See [`Codes`].
    const SIGNED: bool;
    /// The values plus the offset, as unsigned bytes.
    const UNSIGNED: [i8; 16] = {
        let mut values = Self::VALUES;
        let mut i = 0;
        while i < 16 {
            values[i] = values[i].wrapping_add(Self::OFFSET);
            i += 1;
        }
        values
    };
}

/// Four-bit codes that index the values of a table, packed like [`Nibbles`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Lookup<T>([u8; 16], PhantomData<T>);

// SAFETY: consists of bytes only; the marker has no size.
unsafe impl<T: Table> Zeroable for Lookup<T> {}
// SAFETY: consists of bytes only; the marker has no size.
unsafe impl<T: Table> Pod for Lookup<T> {}

impl<T: Table> Lookup<T> {
    /// Looks up the codes in `table`.
    ///
    /// # Safety
    /// As for [`Register::load`].
    #[inline(always)]
    unsafe fn values<R: Register<N>, const N: usize>(
        blocks: [&Self; N],
        table: &'static [i8; 16],
    ) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { R::load(blocks.map(|block| block.0)) }.nibbles();
        (first.look_up(table), second.look_up(table))
    }

    /// Like [`Codes::unpack`] for adjacent blocks, with a single load.
    ///
    /// # Safety
    /// As for [`Register::load`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn unpack_adjacent(blocks: &[Self; 4]) -> (Avx512, Avx512) {
        // SAFETY: guaranteed by the caller.
        let (first, second) =
            unsafe { Avx512::load_adjacent(bytemuck::cast_ref(blocks)) }.nibbles();
        (first.look_up(&T::UNSIGNED), second.look_up(&T::UNSIGNED))
    }
}

impl<T: Table> Codes for Lookup<T> {
    const OFFSET: i8 = T::OFFSET;
    const SIGNED: bool = T::SIGNED;
    #[cfg(target_arch = "x86_64")]
    const LOOKS_UP: bool = true;

    fn pack(codes: [u8; 32]) -> Self {
        Lookup(low_bits(codes), PhantomData)
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::values(blocks, &T::UNSIGNED) }
    }

    #[inline(always)]
    unsafe fn unpack_signed<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::values(blocks, &T::VALUES) }
    }
}
