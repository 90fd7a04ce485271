//! NVFP4: blocks of 64 numbers, in four runs of 16 with an 8-bit float as scale, and 4-bit floats: `x = d * VALUES[q]`, where `VALUES` is
//! twice the values of the floats and `d` half the scale.
//!
//! A scale has four exponent bits and three mantissa bits; 0x7f is zero, and the sign bit is ignored. The low halves of the eight bytes of a
//! run are its numbers 0..8, the high halves its numbers 8..16.
//!
//! A file may have one more scale for a complete matrix. NVFP4S is NVFP4 with this scale in every block, for use in memory.

use super::codes::Table;
use super::encode_blocks;
use super::mxfp4::Values;
use super::wide::{self, Run};
use crate::error::Result;
use crate::format::Format;
use crate::room::zeroed;
use crate::rounding::Rounding;
use crate::simd::register::Register;
use crate::storage::{Bytes, Tensor};

/// 4.5 bits per number: blocks of 64 4-bit floats, with an 8-bit float as scale per 16.
pub static NVFP4: Format =
    wide::format::<Block, 4>("NVFP4", 40, Rounding::Blocks, 0..4, Some(encode));

/// NVFP4 with an additional f32 scale in each block. No other program reads it.
pub static NVFP4S: Format =
    wide::format::<ScaledBlock, 4>("NVFP4S", 0x1000 + 40, Rounding::Blocks, 0..8, None);

/// Converts a tensor in NVFP4 to [`NVFP4S`]. Each scale is for an equal number of consecutive rows.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory).
///
/// # Panics
/// If the tensor has another format, or its rows are not a multiple of the scales.
pub fn nvfp4_with_scales(tensor: &Tensor, scales: &[f32]) -> Result<Tensor> {
    assert!(tensor.format == &NVFP4, "a tensor in {}", tensor.format);
    let blocks: &[Block] = bytemuck::cast_slice(&tensor.data);
    assert!(
        !scales.is_empty() && blocks.len().is_multiple_of(scales.len()),
        "{} scales",
        scales.len()
    );
    let mut data = zeroed(blocks.len() * size_of::<ScaledBlock>())?;
    let scaled = bytemuck::cast_slice_mut::<u8, ScaledBlock>(&mut data);
    let of_scale = (blocks.len() / scales.len()).max(1);
    let parts = scaled.chunks_mut(of_scale).zip(blocks.chunks(of_scale));
    for ((scaled, blocks), scale) in parts.zip(scales) {
        for (scaled, &block) in scaled.iter_mut().zip(blocks) {
            let scale = scale.to_le_bytes();
            *scaled = ScaledBlock { scale, block };
        }
    }
    Tensor::new(&NVFP4S, tensor.shape.clone(), Bytes::from_vec(data))
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct ScaledBlock {
    scale: [u8; 4],
    block: Block,
}

const _: () = assert!(size_of::<ScaledBlock>() == 40);

impl wide::Block for ScaledBlock {
    const LEN: usize = 64;
    const OFFSET: u8 = Block::OFFSET;
    const HALVES: bool = true;

    #[inline(always)]
    fn factor(&self) -> f32 {
        f32::from_le_bytes(self.scale)
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        self.block.scales(factor, run)
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        unsafe { Block::unpack(runs.map(|(scaled, run)| (&scaled.block, run))) }
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: [u8; 4],
    q: [[u8; 8]; 4],
}

const _: () = assert!(size_of::<Block>() == 36);

/// The largest magnitude of a run becomes 6 times the scale.
fn encode(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; 64]| {
        let mut block: Block = bytemuck::Zeroable::zeroed();
        for (run, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let largest = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
            block.d[run] = rounded_scale(largest / 6.0);
            let d = SCALES[usize::from(block.d[run])];
            block.q[run] = std::array::from_fn(|i| nearest(x[i], d) | nearest(x[i + 8], d) << 4);
        }
        block
    });
}

/// The nearest scale; numbers halfway between two become the larger one.
fn rounded_scale(x: f32) -> u8 {
    const LARGEST: u8 = 0x7e;
    let exponent = (x.to_bits() >> 23) as i32 - 127 + 7;
    match exponent {
        _ if x.is_nan() || x <= 0.0 => 0,
        ..=0 => ((x * 512.0 + 0.5) as u8).min(7),
        15.. => LARGEST,
        // A carry out of the mantissa goes into the exponent.
        _ => {
            ((((exponent as u32) << 4 | x.to_bits() >> 19 & 15) + 1) >> 1).min(LARGEST.into()) as u8
        }
    }
}

/// The code of the value nearest to `x / d`, the first one among equals.
fn nearest(x: f32, d: f32) -> u8 {
    let error = |code: u8| (f32::from(Values::VALUES[usize::from(code)]) * d - x).abs();
    (1..16).fold(0, |best, code| {
        if error(code) < error(best) {
            code
        } else {
            best
        }
    })
}

impl wide::Block for Block {
    const LEN: usize = 64;
    const OFFSET: u8 = 12;
    const HALVES: bool = true;

    #[inline(always)]
    fn factor(&self) -> f32 {
        1.0
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let two: [u8; 2] = self.d.as_chunks().0[run];
        two.map(|d| SCALES[usize::from(d & 127)] * factor)
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let bytes = runs.map(|(block, run)| block.q.as_flattened().as_chunks().0[run]);
        // SAFETY: guaranteed by the caller.
        let (low, high) = unsafe { R::load(bytes) }.nibbles();
        let codes = &Values::UNSIGNED;
        low.look_up(codes).join_halves(high.look_up(codes))
    }
}

/// Half the scales.
static SCALES: [f32; 128] = {
    let mut scales = [0.0; 128];
    let mut i = 0;
    while i < 127 {
        // Exponents 1..16 have the bias 7 and an implicit bit; half of the value lowers the exponent by one.
        scales[i as usize] = if i < 8 {
            i as f32 / 1024.0
        } else {
            f32::from_bits(((i >> 3) + 127 - 7 - 1) << 23 | (i & 7) << 20)
        };
        i += 1;
    }
    scales
};
