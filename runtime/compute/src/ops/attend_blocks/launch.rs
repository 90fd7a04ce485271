//! Launches of the sparse attention kernels in `attend_blocks.cu`.

use super::{AttendBlocks, BRANCHES};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source, TensorCores};
use crate::error::Result;
use crate::ops::DeviceOp;
use crate::ops::attend::{block, heads_together, unit};
use std::ffi::c_void;

const SOURCE: &[Source] = &[
    Source::new("ops/attend_blocks/attend_blocks.cu", &[Blocks::define]),
    Source::new("ops/attend_blocks/attend_chosen.cu", &[]),
    Source::new("ops/attend_blocks/attend_blocks_step.cu", &[]),
];

/// Thread blocks per SM; each loops over tokens and heads.
const TURNS: usize = 4;

/// Warps per thread block on tensor cores, and rows of their tiles.
const WARPS: usize = 4;
const TILE: usize = 16;
/// Largest head_dim whose queries and sums fit in a thread's registers.
const MOST_DIM: usize = 128;

/// Whether chunks of up to `tokens` tokens attend to chosen blocks and window on tensor cores.
fn on_tensor_cores(dim: usize, tokens: usize, cores: TensorCores) -> bool {
    let covered = dim.is_multiple_of(16) && dim <= MOST_DIM;
    covered && tokens >= 16 && cores != TensorCores::None
}

device_struct! {
    /// Attention to chosen blocks of keys, to their means and to a window.
    struct Blocks {
        q: Rows,
        k: Rows,
        v: Rows,
        gates: Rows,
        out: Rows,
        keys: Address as *mut c_void,
        values: Address as *mut c_void,
        mean_keys: Address as *mut c_void,
        mean_values: Address as *mut c_void,
        /// The chunk's keys and values, each `[kv_heads, chunk, head_dim]`.
        staged: Address as *mut c_void,
        /// Mean keys and mean values of the blocks that the chunk completes, each `[kv_heads, chunk / block + 1, head_dim]`.
        staged_means: Address as *mut c_void,
        /// One row per thread block or, in a step, per key head.
        importance: Address as *mut f32,
        /// Partial softmaxes of a step.
        parts: Address as *mut f32,
        /// If another kernel attends to them, the chosen blocks of each token and key head, counted from the first block in
        /// view, followed by their number.
        picked: Address as *mut i32,
        scale: f32,
        heads: i32,
        kv_heads: i32,
        block: i32,
        chosen: i32,
        window: i32,
        /// Rows of the cached keys.
        rows: i32,
        /// Rows of the means.
        blocks: i32,
        chunk: i32,
        pad: i32,
    }
}

/// Most thread blocks that divide the keys of a step's heads.
const MOST_SPLITS: usize = 16;

/// Number of thread blocks that divide the keys of a step's heads, where `blocks` have different heads: as many as the device
/// runs at once.
fn splits(blocks: usize, sms: usize) -> usize {
    (sms / blocks).clamp(2, MOST_SPLITS)
}

impl DeviceOp for AttendBlocks {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (kv, dim, chunk) = (launches.kv(), self.head_dim(), launches.tokens);
        let step = chunk == 1;
        let heads = heads_together(self.group());
        let splits = splits(self.heads / heads, launches.limits.sms);
        let picks = on_tensor_cores(dim, chunk, launches.limits.tensor_cores);
        let at_once = if step {
            self.kv_heads
        } else {
            (self.kv_heads * chunk).min(TURNS * launches.limits.sms)
        };
        let blocks = launches.state_shape(self.mean_keys)[1];
        let mut numbers = |wanted: bool, n: usize| {
            if wanted {
                launches.scratch_address(n * size_of::<f32>())
            } else {
                Ok(0)
            }
        };
        let staged = numbers(true, 2 * self.kv_heads * chunk * dim)?;
        let means = 2 * self.kv_heads * (chunk / self.block + 1) * dim;
        let staged_means = numbers(true, means)?;
        let importance = numbers(true, at_once * (blocks + 2))?;
        let parts = numbers(step, BRANCHES * self.heads * splits * (dim + 2))?;
        let picked = numbers(picks, self.kv_heads * chunk * (self.chosen + 1))?;
        let parameters = Blocks {
            q: launches.rows(self.q),
            k: launches.rows(self.k),
            v: launches.rows(self.v),
            gates: launches.rows(self.gates),
            out: launches.rows(self.out),
            keys: launches.state_address(self.keys),
            values: launches.state_address(self.values),
            mean_keys: launches.state_address(self.mean_keys),
            mean_values: launches.state_address(self.mean_values),
            staged,
            staged_means,
            importance,
            parts,
            picked,
            scale: self.scale,
            heads: self.heads as i32,
            kv_heads: self.kv_heads as i32,
            block: self.block as i32,
            chosen: self.chosen as i32,
            window: self.window as i32,
            rows: launches.state_shape(self.keys)[1] as i32,
            blocks: blocks as i32,
            chunk: chunk as i32,
            pad: 0,
        };
        let position = launches.position();
        let call = |kernel: String, grid: Grid, (threads, shared): (usize, usize)| Call {
            source: SOURCE,
            kernel,
            grid,
            threads,
            shared,
            parameters: vec![Parameter::value(parameters), position.clone()],
        };
        let with_tokens = |mut call: Call| {
            call.parameters.push(Parameter::tokens());
            call
        };
        let each_head = Grid::EachToken(self.kv_heads);
        let columns = (dim.next_multiple_of(32).min(256), 0);
        launches.push(call(
            format!("stage_blocks<{kv}, {dim}>"),
            each_head,
            columns,
        ));

        let (threads, merged) = block(dim, heads);
        let floats = |n: usize| n * size_of::<f32>();
        let totals = floats(2 * self.group());
        let chosen = floats(self.chosen);
        let arguments = format!("{kv}, {dim}, {}, {heads}", unit(dim, &[]));
        if step {
            let shared_out = Grid::Blocks(self.heads / heads * splits);
            let each_kv_head = Grid::Blocks(self.kv_heads * splits);
            for (kernel, grid, shared) in [
                ("means_of_step", shared_out, merged),
                ("importance_of_step", each_kv_head, totals),
                ("tokens_of_step", shared_out, merged + chosen),
            ] {
                let kernel = format!("{kernel}<{arguments}, {splits}>");
                launches.push(call(kernel, grid, (threads, shared)));
            }
            let kernel = format!("combine_branches<{dim}, {splits}>");
            launches.push(call(kernel, Grid::Blocks(self.heads), columns));
        } else {
            let kernel = format!("attend_blocks<{arguments}, {picks}>");
            let room = (threads, merged + totals + chosen);
            launches.push(with_tokens(call(kernel, Grid::Blocks(at_once), room)));
        }
        if picks {
            let room = (32 * WARPS, floats(WARPS * TILE * (dim + 2)));
            let kernel = format!("attend_chosen<{kv}, {dim}>");
            launches.push(call(kernel, each_head, room));
        }
        let cache = call(format!("cache_blocks<{kv}, {dim}>"), each_head, columns);
        launches.push(with_tokens(cache));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_all_processors() {
        assert_eq!(splits(8, 132), 16);
        assert_eq!(splits(32, 132), 4);
        assert_eq!(splits(200, 132), 2);
        assert_eq!(splits(1, 8), 8);
    }

    #[test]
    fn long_chunks_run_on_tensor_cores_where_registers_hold_them() {
        let on = |dim, tokens| on_tensor_cores(dim, tokens, TensorCores::Warps);
        assert!(on(64, 2048) && on(16, 16) && on(128, 64));
        assert!(!on(64, 1) && !on(40, 2048) && !on(256, 2048));
        assert!(!on_tensor_cores(64, 2048, TensorCores::None));
    }
}
