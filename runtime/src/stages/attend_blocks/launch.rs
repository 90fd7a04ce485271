//! Sparse attention as kernels: what `attend_blocks.cu` is called with.

use bytemuck::{Pod, Zeroable};

use super::AttendBlocks;
use crate::cuda::{Call, Grid, Launches, Parameter, Rows, TensorCores};
use crate::error::Result;
use crate::stages::attend::{block, heads_together, unit};

const SOURCE: &str = concat!(
    include_str!("../attend_blocks.cu"),
    include_str!("../attend_chosen.cu")
);

/// Blocks of threads that a processor is given; each takes tokens and heads in turn.
const TURNS: usize = 4;

/// Warps of a block on tensor cores, and rows of their tiles.
const WARPS: usize = 4;
const TILE: usize = 16;
/// Longest heads whose queries and sums a thread's registers hold their part of.
const MOST_DIM: usize = 128;

/// Whether chunks of up to `tokens` tokens attend to chosen blocks and window on tensor cores.
fn on_tensor_cores(dim: usize, tokens: usize, cores: TensorCores) -> bool {
    let covered = dim.is_multiple_of(32) && dim <= MOST_DIM;
    covered && tokens >= 16 && cores != TensorCores::None
}

/// `Blocks` in attend_blocks.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Blocks {
    q: Rows,
    k: Rows,
    v: Rows,
    gates: Rows,
    out: Rows,
    keys: u64,
    values: u64,
    mean_keys: u64,
    mean_values: u64,
    staged: u64,
    staged_means: u64,
    importance: u64,
    picked: u64,
    scale: f32,
    heads: i32,
    kv_heads: i32,
    block: i32,
    chosen: i32,
    window: i32,
    rows: i32,
    blocks: i32,
    chunk: i32,
    pad: i32,
}

impl AttendBlocks {
    pub(crate) fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (kv, dim, chunk) = (launches.kv(), self.head_dim(), launches.tokens);
        let blocks = launches.slot_shape(self.mean_keys)[1];
        let at_once = (self.kv_heads * chunk).min(TURNS * launches.processors());
        let mut numbers = |n: usize| launches.scratch_address(n * size_of::<f32>());
        let staged = numbers(2 * self.kv_heads * chunk * dim)?;
        let staged_means = numbers(2 * self.kv_heads * (chunk / self.block + 1) * dim)?;
        let importance = numbers(at_once * (blocks + 2))?;
        let picks = on_tensor_cores(dim, chunk, launches.tensor_cores());
        let picked = match picks {
            true => launches
                .scratch_address(self.kv_heads * chunk * (self.chosen + 1) * size_of::<i32>())?,
            false => 0,
        };
        let parameters = Blocks {
            q: launches.rows(self.q),
            k: launches.rows(self.k),
            v: launches.rows(self.v),
            gates: launches.rows(self.gates),
            out: launches.rows(self.out),
            keys: launches.slot_address(self.keys),
            values: launches.slot_address(self.values),
            mean_keys: launches.slot_address(self.mean_keys),
            mean_values: launches.slot_address(self.mean_values),
            staged,
            staged_means,
            importance,
            picked,
            scale: self.scale,
            heads: self.heads as i32,
            kv_heads: self.kv_heads as i32,
            block: self.block as i32,
            chosen: self.chosen as i32,
            window: self.window as i32,
            rows: launches.slot_shape(self.keys)[1] as i32,
            blocks: blocks as i32,
            chunk: chunk as i32,
            pad: 0,
        };
        let call = |kernel: String, grid: Grid, last: Option<Parameter>| {
            let parameters = [Parameter::value("Blocks", parameters), launches.position()];
            Call {
                source: SOURCE,
                kernel,
                grid,
                threads: dim.next_multiple_of(32).min(256),
                shared: 0,
                parameters: parameters.into_iter().chain(last).collect(),
            }
        };
        let heads = heads_together(self.group());
        let unit = unit(dim, &[]);
        let (threads, merged) = block(dim, heads);
        let each_head = Grid::EachToken(self.kv_heads);
        let tokens = || Some(Parameter::tokens());
        let stage = call(format!("stage_blocks<{kv}, {dim}>"), each_head, None);
        let kernel = format!("attend_blocks<{kv}, {dim}, {unit}, {heads}, {picks}>");
        let attend = Call {
            threads,
            shared: merged + (2 * self.group() + self.chosen) * size_of::<f32>(),
            ..call(kernel, Grid::Blocks(at_once), tokens())
        };
        let chosen = Call {
            threads: 32 * WARPS,
            shared: WARPS * TILE * (dim + 2) * size_of::<f32>(),
            ..call(format!("attend_chosen<{kv}, {dim}>"), each_head, None)
        };
        let cache = call(format!("cache_blocks<{kv}, {dim}>"), each_head, tokens());
        let calls = [
            Some(stage),
            Some(attend),
            picks.then_some(chosen),
            Some(cache),
        ];
        calls
            .into_iter()
            .flatten()
            .for_each(|call| launches.push(call));
        Ok(())
    }
}
