//! Launches of sparse attention in parallel with a state-space model, in `hax.cu`.

use bytemuck::{Pod, Zeroable};
use waterline_kernels::{File, file};

use super::Hax;
use crate::cuda::{Call, Grid, Launches, Parameter, Rows};
use crate::error::{Error, Result};
use crate::ops::DeviceOp;
use crate::ops::hax_sources::{KeySource, Pattern};

const SOURCE: &[File] = &[file("ops/hax/hax.cu")];

/// `HaxSource` in hax.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HaxSource {
    weights: u64,
    second_weights: u64,
    bias: u64,
    second_bias: u64,
    last: u64,
    last_bias: f32,
    kind: i32,
    first: i32,
    rows: i32,
    every: i32,
    columns: i32,
}

const MOST_SOURCES: usize = 8;

/// `HaxParts` in hax.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HaxParts {
    k: Rows,
    q: Rows,
    v: Rows,
    plan: Rows,
    out: Rows,
    keys: u64,
    values: u64,
    positions: u64,
    means: u64,
    cursors: u64,
    scores: u64,
    count: i32,
    seen: i32,
    at: [HaxSource; MOST_SOURCES],
}

// The kinds in hax.cu.
const WINDOW: i32 = 0;
const SINK: i32 = 1;
const DILATED: i32 = 2;
const SIGNS: i32 = 3;
const LARGEST: i32 = 4;
const BEST: i32 = 5;

impl DeviceOp for Hax {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let width = self.k.width;
        let list = self.sources.list();
        if list.len() > MOST_SOURCES {
            return Err(Error::Device {
                device: "kernels".into(),
                reason: format!(
                    "sparse attention with {} sources, kernels take up to {MOST_SOURCES}",
                    list.len()
                ),
            });
        }
        let mut at = [HaxSource::zeroed(); MOST_SOURCES];
        for (place, source) in at.iter_mut().zip(list) {
            *place = source_of(source, width, launches)?;
        }
        let address =
            |tensor: Option<usize>| tensor.map_or(0, |tensor| launches.state_address(tensor));
        let parts = HaxParts {
            k: launches.rows(self.k),
            q: launches.rows(self.q),
            v: launches.rows(self.v),
            plan: launches.rows(self.plan),
            out: launches.rows(self.out),
            keys: address(Some(self.keys)),
            values: address(Some(self.values)),
            positions: address(Some(self.positions)),
            means: address(Some(self.means)),
            cursors: address(self.cursors),
            scores: address(self.scores),
            count: list.len() as i32,
            seen: self.sources.most() as i32,
            at,
        };
        let columns = at.iter().map(|s| s.columns as usize).max().unwrap_or(0);
        let kv = launches.kv();
        launches.push(Call {
            source: SOURCE,
            kernel: format!("hax_choose<{kv}, {width}>"),
            grid: Grid::Blocks(1),
            threads: 256,
            shared: (5 * width + columns) * size_of::<f32>(),
            parameters: vec![
                Parameter::value("HaxParts", parts),
                launches.position(),
                Parameter::tokens(),
            ],
        });
        let channels = self.v.width;
        launches.push(Call {
            source: SOURCE,
            kernel: format!("hax_mix<{kv}, {channels}>"),
            grid: Grid::Blocks(channels.div_ceil(32)),
            threads: 256,
            shared: 0,
            parameters: vec![Parameter::value("HaxParts", parts), Parameter::tokens()],
        });
        Ok(())
    }
}

fn source_of(source: &KeySource, width: usize, launches: &Launches) -> Result<HaxSource> {
    let mut parts = HaxSource {
        first: source.first as i32,
        rows: source.rows as i32,
        ..HaxSource::zeroed()
    };
    match &source.pattern {
        Pattern::Window => parts.kind = WINDOW,
        Pattern::Sink => parts.kind = SINK,
        Pattern::Dilated(every) => {
            parts.kind = DILATED;
            parts.every = *every as i32;
        }
        Pattern::Bins(hash) => {
            parts.kind = if hash.signs { SIGNS } else { LARGEST };
            parts.columns = (hash.weight.len() / width) as i32;
            parts.weights = launches.vector_address(&hash.weight)?;
        }
        Pattern::Best(scorer) => {
            parts.kind = BEST;
            parts.weights = launches.vector_address(&scorer.weights[0])?;
            parts.second_weights = launches.vector_address(&scorer.weights[1])?;
            parts.bias = launches.vector_address(&scorer.biases[0])?;
            parts.second_bias = launches.vector_address(&scorer.biases[1])?;
            parts.last = launches.vector_address(&scorer.last)?;
            parts.last_bias = scorer.last_bias;
        }
    }
    Ok(parts)
}
