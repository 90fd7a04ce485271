//! Panels on AMX: a tile instruction multiplies sixteen rows by sixteen tokens, one block of 32 columns at a time.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::avx512::Integer;
use super::avx512_panel::{add_block, store, unpack};
use crate::activations::{BLOCK, TokenPanel};
use crate::panel::{DEPTH, LANES, Panel, Panels, ROWS, Sums};

/// Whether this CPU multiplies tiles of 8-bit codes and of bf16 values, and the system permits this process to do so. Queries the system
/// once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const ALL: u32 = AMX_BF16 | AMX_TILE | AMX_INT8;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & ALL == ALL
}

/// Calls `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`: Linux saves the eight KiB of tiles per thread only on request.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    let status: i64;
    // SAFETY: the call reads its two arguments and accesses no memory.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => status, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack));
    }
    status == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Operand of `ldtilecfg`: the sizes of the tiles.
#[repr(C, align(64))]
pub(super) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Tiles 0 and 1 hold sums, 2 and 3 rows of weights, 4 and 5 inputs; weights and inputs have `columns` columns.
    const fn new(columns: usize) -> Config {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let (weights, inputs) = (columns as u16, (columns / 4) as u8);
        (config.row_bytes[0], config.rows[0]) = (64, ROWS as u8);
        (config.row_bytes[1], config.rows[1]) = (64, ROWS as u8);
        (config.row_bytes[2], config.rows[2]) = (weights, ROWS as u8);
        (config.row_bytes[3], config.rows[3]) = (weights, ROWS as u8);
        (config.row_bytes[4], config.rows[4]) = (64, inputs);
        (config.row_bytes[5], config.rows[5]) = (64, inputs);
        config
    }

    /// All tiles have sixteen lines of 64 bytes.
    pub(super) const fn for_floats() -> Config {
        let mut config = Config::new(BLOCK);
        let mut tile = 0;
        while tile < 8 {
            (config.row_bytes[tile], config.rows[tile]) = (64, 16);
            tile += 1;
        }
        config
    }
}

/// Tile sizes for complete blocks. `HALVES` is for half blocks.
static WHOLE: Config = Config::new(BLOCK);
static HALVES: Config = Config::new(BLOCK / 2);

/// Products of two pieces of a panel, tile by tile: [`ROWS`] by [`LANES`] each.
#[repr(C, align(64))]
struct Dots([[[i32; LANES]; ROWS]; 2]);

/// Multiplies two pieces of sixteen rows with two pieces of sixteen tokens. The second piece of rows lies `next` bytes after `weights`, and
/// the second piece of tokens `next` bytes times 16 tokens after `inputs`.
///
/// # Safety
/// The tiles must be configured and lie within the codes of a panel and of a token panel.
#[inline(always)]
unsafe fn multiply_two(weights: *const i8, inputs: *const i8, next: usize, dots: &mut Dots) {
    // SAFETY: guaranteed by the caller; a tile of sums has 1024 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm2, [{weights} + {depth}]",
            "tileloadd tmm4, [{inputs} + {line}]",
            "tileloadd tmm3, [{second_weights} + {depth}]",
            "tileloadd tmm5, [{second_inputs} + {line}]",
            "tdpbssd tmm0, tmm2, tmm4",
            "tdpbssd tmm1, tmm3, tmm5",
            "tilestored [{dots} + {line}], tmm0",
            "tilestored [{second_dots} + {line}], tmm1",
            weights = in(reg) weights,
            second_weights = in(reg) weights.add(next),
            inputs = in(reg) inputs,
            second_inputs = in(reg) inputs.add(LANES * next),
            depth = in(reg) DEPTH,
            line = in(reg) 64usize,
            dots = in(reg) &raw mut dots.0[0],
            second_dots = in(reg) &raw mut dots.0[1],
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            options(nostack, preserves_flags)
        );
    }
}

pub(crate) struct Amx<B>(PhantomData<B>);

impl<B: Integer> Panels for Amx<B> {
    unsafe fn begin() {
        let config = if B::HALF_SCALES { &HALVES } else { &WHOLE };
        // SAFETY: the configuration has 64 bytes, with sizes that the palette allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, preserves_flags)) };
    }

    unsafe fn end() {
        // SAFETY: the tiles are no longer in use.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }

    unsafe fn unpack(row: &[u8], from: usize, index: usize, panel: &mut Panel) {
        // SAFETY: the caller guarantees the level.
        unsafe { unpack::<B, true>(row, from, index, panel) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn accumulate(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        let mut sum = [_mm512_setzero_ps(); ROWS];
        for r in 0..ROWS {
            // SAFETY: sixteen sums.
            sum[r] = unsafe { _mm512_loadu_ps(sums.0[r].as_ptr()) };
        }
        let codes = panel.codes.as_ptr().cast::<i8>();
        // Two pieces at a time: two blocks (the last block of an odd number twice), or the halves of one block. Two pieces are multiplied
        // while the previous two are added, so that nothing waits for a tile's transfer through memory.
        let (pieces, columns) = if B::HALF_SCALES {
            (x.blocks, BLOCK)
        } else {
            (x.blocks.div_ceil(2), 2 * BLOCK)
        };
        assert!(x.blocks <= DEPTH / BLOCK);
        let blocks = x.blocks;
        let mut dots = [const { Dots([[[0; LANES]; ROWS]; 2]) }; 2];
        for step in 0..=pieces {
            if step < pieces {
                let next = if !B::HALF_SCALES && 2 * step + 1 == blocks {
                    0
                } else {
                    columns / 2
                };
                // SAFETY: these blocks are within the panels.
                unsafe {
                    let (weights, inputs) = (
                        codes.add(step * columns),
                        x.codes.add(step * columns * LANES),
                    );
                    multiply_two(weights, inputs, next, &mut dots[step % 2]);
                }
            }
            if step > 0 {
                let dots = &dots[(step - 1) % 2].0;
                let dot = |piece: usize, r: usize| {
                    // SAFETY: the products of a row are sixteen.
                    unsafe { _mm512_loadu_si512(dots[piece][r].as_ptr().cast()) }
                };
                // SAFETY: these blocks are within the panels.
                unsafe {
                    if B::HALF_SCALES {
                        add_block::<B, ROWS>(panel, 0, x, step - 1, dot, &mut sum);
                    } else {
                        let block = 2 * (step - 1);
                        add_block::<B, ROWS>(panel, 0, x, block, dot, &mut sum);
                        if block + 1 < blocks {
                            add_block::<B, ROWS>(
                                panel,
                                0,
                                x,
                                block + 1,
                                |_, r| dot(1, r),
                                &mut sum,
                            );
                        }
                    }
                }
            }
        }
        for r in 0..ROWS {
            // SAFETY: sixteen sums.
            unsafe { _mm512_storeu_ps(sums.0[r].as_mut_ptr(), sum[r]) };
        }
    }

    unsafe fn store(sums: &Sums, size: [usize; 2], out: *mut f32, stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { store(sums, size, out, stride) };
    }
}
