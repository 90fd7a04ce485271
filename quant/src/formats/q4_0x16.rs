//! Q4_0x16: the numbers of sixteen blocks of Q4_0, ordered for registers of sixteen 32-bit lanes, with one block per lane.
//!
//! Codes are multiplied without shuffles, and one conversion and two multiply-adds serve 512 numbers instead of 128. No other program reads
//! this format.

use crate::format::{Format, Reordered};
use crate::formats::codes::Nibbles;
use crate::formats::q4_0::{Block, Q4_0};
use crate::formats::{Half, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 4.5 bits per number: [`Q4_0`] in blocks of 512, for CPUs with AVX-512.
pub(crate) static Q4_0X16: Format = Format {
    name: "Q4_0x16",
    ggml_type: 0x1000 + 2, // ggml has no such number
    block_len: 512,
    block_bytes: size_of::<Wide>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..0,
    code_tiles: false,
    slot_tiles: false,
    reordered: Some(Reordered {
        of: &Q4_0,
        order: |bytes| {
            let (blocks, _) = bytemuck::cast_slice::<u8, Block>(bytes).as_chunks();
            let wides: Vec<Wide> = blocks.iter().map(Wide::new).collect();
            bytemuck::cast_slice(&wides).to_vec()
        },
        restore: |bytes, restored| {
            let (blocks, _) = bytemuck::cast_slice_mut::<u8, Block>(restored).as_chunks_mut();
            let wides = bytemuck::cast_slice::<u8, Wide>(bytes);
            for (wide, blocks) in wides.iter().zip(blocks) {
                wide.restore(blocks);
            }
        },
    }),
    encode: Some(|src, importance, dst| {
        let Some(importance) = importance else {
            return encode_blocks(src, dst, Wide::encode);
        };
        let mut blocks = bytemuck::zeroed_vec::<Block>(src.len() / 32);
        Q4_0.encode_row(src, importance, bytemuck::cast_slice_mut(&mut blocks));
        let wides = bytemuck::cast_slice_mut::<u8, Wide>(dst);
        for (wide, blocks) in wides.iter_mut().zip(blocks.as_chunks().0) {
            *wide = Wide::new(blocks);
        }
    }),
    decode: |src, dst| {
        let wides = bytemuck::cast_slice::<u8, Wide>(src).iter();
        let blocks = wides.flat_map(|wide| (0..16).map(|b| wide.block(b)));
        for (block, values) in blocks.zip(dst.as_chunks_mut().0) {
            *values = block.decode();
        }
    },
    kernel: kernel::reordered,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Wide {
    pub(crate) d: [Half; 16],
    /// `q[j][b]` holds bytes 4 j to 4 j + 3 of block b.
    pub(crate) q: [[[u8; 4]; 16]; 4],
}

const _: () = assert!(size_of::<Wide>() == 16 * size_of::<Block>());

impl Wide {
    fn new(blocks: &[Block; 16]) -> Wide {
        let mut wide: Wide = bytemuck::Zeroable::zeroed();
        for (b, block) in blocks.iter().enumerate() {
            wide.d[b] = block.d;
            for (j, bytes) in block.q.0.as_chunks::<4>().0.iter().enumerate() {
                wide.q[j][b] = *bytes;
            }
        }
        wide
    }

    fn encode(x: &[f32; 512]) -> Wide {
        let (blocks, _) = x.as_chunks::<32>();
        Wide::new(&std::array::from_fn(|b| Block::encode_block(&blocks[b])))
    }

    #[inline]
    fn block(&self, b: usize) -> Block {
        Block {
            d: self.d[b],
            q: Nibbles(bytemuck::cast([0, 1, 2, 3].map(|j| self.q[j][b]))),
        }
    }

    #[inline]
    fn restore(&self, blocks: &mut [Block; 16]) {
        for (b, block) in blocks.iter_mut().enumerate() {
            *block = self.block(b);
        }
    }
}
