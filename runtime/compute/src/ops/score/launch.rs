//! Launches of the kernels in `score.cu`.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{RouterLayer, Score, ScoreMap};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

const SOURCE: &[Source] = &[Source::new(
    "ops/score/score.cu",
    &[
        RouterInputs::define,
        RouterLayers::define,
        RouterEnd::define,
    ],
)];

device_struct! {
    /// The inputs of a layer: those stored before the chunk, oldest first, then the chunk's, which are keys and values for the first layer
    /// (`outputs` is null) and rows of the previous layer for the others.
    struct RouterInputs {
        k: Rows,
        v: Rows,
        /// For each key head, `chunk` rows.
        outputs: Address as *mut f32,
        /// For each key head, `past` rows.
        history: Address as *mut f32,
        /// Destination for a copy of a single token's inputs, in rows as of `outputs`, or null: their source may be overwritten before the
        /// next layer stores them.
        copy: Address as *mut f32,
        inputs: i32,
        past: i32,
        chunk: i32,
        pad: i32,
    }
    "__device__ float at(int head, int t, int channel) const"
}

device_struct! {
    /// From the last layer's outputs to a score.
    struct RouterEnd {
        weight: Address as *const f32,
        bias: Address as *const f32,
        /// Null in a decode kernel.
        out: Rows,
        /// The scores of a head's window, `rows` of them, where that of the token `margin` before a single one goes at once, or null.
        window: Address as *mut f32,
        rows: i32,
        margin: i32,
    }
    "template <int map> __device__ void give(int head, int t, float part, float bias, u64 position) const"
}

device_struct! {
    /// The inputs of all layers.
    struct RouterLayers {
        at: [RouterInputs; MOST_LAYERS],
    }
}

const MOST_LAYERS: usize = 8;
/// Most outputs of a block, one for each lane. For a single token more blocks of fewer read more of the weights at once.
const WIDTH: usize = 32;
const STEP_WIDTH: usize = 8;
/// Threads of a block of a chunk, the most tokens of its tile, and the most bytes of their inputs.
const THREADS: usize = 256;
const TILE: usize = 64;
const TILE_BYTES: usize = 48 << 10;

/// A layer with its kernel arguments.
struct Placed<'a> {
    layer: &'a RouterLayer,
    from: RouterInputs,
    out: Address,
    /// How far it and those before it look ahead together.
    ahead: usize,
    /// The memory of its inputs, of those that it keeps, and of its outputs.
    inputs: [Range<Address>; 2],
    history: Range<Address>,
    outputs: Range<Address>,
    /// Address of a single token's inputs for the next layer, if not this layer's.
    copy: Range<Address>,
}

impl Placed<'_> {
    /// Address of a single token's inputs for the next layer.
    fn found(&self) -> &Range<Address> {
        match self.from.copy {
            0 => &self.inputs[0],
            _ => &self.copy,
        }
    }
}

impl DeviceOp for Score {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let placed = self.placed(launches)?;
        let margin: usize = self.layers.iter().map(RouterLayer::ahead).sum();
        let mut end = RouterEnd {
            weight: launches.vector_address(&self.weight)?,
            bias: launches.vector_address(&self.bias)?,
            out: launches.rows(self.out),
            margin: i32::try_from(margin).expect("a margin within the window"),
            ..RouterEnd::zeroed()
        };
        // A single token's score is made by the last layer, if a block has all of that, and goes to its place in the window at once: of
        // a chunk, and of columns that are tokens of one state, tokens may have to leave the window before.
        let last = self.weight.len() / self.bias.len();
        let ends = launches.tokens == 1 && last <= WIDTH;
        let stores = ends && margin > 0 && launches.slot.position.is_none();
        let window = self.window.filter(|_| stores);
        if let Some(tensor) = window {
            end.window = launches.state_address(tensor);
            end.rows = launches.state_shape(tensor)[1] as i32;
            // In a decode kernel attention finds it there, and a later layer may already use these columns.
            if launches.persistent {
                end.out = Rows::zeroed();
            }
        }
        for (index, layer) in placed.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &placed[before]);
            let before = before.filter(|_| ends);
            let is_end = ends && index + 1 == placed.len();
            match launches.tokens {
                1 => self.launch_layer(launches, layer, before, is_end, end)?,
                _ => self.launch_tiles(launches, layer)?,
            }
            let [k, v] = layer.inputs.clone();
            let mut reads = vec![k, v, layer.history.clone()];
            let mut writes = vec![layer.outputs.clone(), layer.copy.clone()];
            if let Some(before) = before {
                reads.push(before.found().clone());
                writes.push(before.history.clone());
            }
            if is_end {
                writes.extend([layer.history.clone(), end.out.bytes()]);
                writes.extend(window.map(|tensor| launches.state_bytes(tensor)));
            }
            launches.narrow_accesses(&reads, &writes);
        }
        if !ends {
            self.launch_end(launches, &placed, end);
        }
        Ok(())
    }
}

impl Score {
    fn placed(&self, launches: &mut Launches) -> Result<Vec<Placed<'_>>> {
        let chunk = launches.tokens;
        let [k, v] = [self.k, self.v].map(|view| launches.rows(view));
        let mut placed: Vec<Placed> = Vec::new();
        for layer in &self.layers {
            let before = placed.last();
            let mut copy = 0..0;
            // In a decode kernel the columns may be overwritten before the second layer keeps them.
            if before.is_none() && chunk == 1 {
                let bytes = self.kv_heads * layer.inputs * size_of::<f32>();
                copy.start = launches.scratch_address(bytes)?;
                copy.end = copy.start + bytes as u64;
            }
            let from = RouterInputs {
                k,
                v,
                outputs: before.map_or(0, |before| before.out),
                history: launches.state_address(layer.state),
                copy: copy.start,
                inputs: layer.inputs as i32,
                past: layer.past() as i32,
                chunk: chunk as i32,
                pad: 0,
            };
            let inputs = match before {
                Some(before) => [before.outputs.clone(), 0..0],
                None => [k.bytes(), v.bytes()],
            };
            let ahead = before.map_or(0, |before| before.ahead) + layer.ahead();
            let bytes = self.kv_heads * chunk * layer.outputs * size_of::<f32>();
            let out = launches.scratch_address(bytes)?;
            placed.push(Placed {
                layer,
                from,
                out,
                ahead,
                inputs,
                history: launches.state_bytes(layer.state),
                outputs: out..out + bytes as u64,
                copy,
            });
        }
        Ok(placed)
    }

    /// One layer of a single token, which keeps the inputs of the one `before`, and as the last one makes the score.
    fn launch_layer(
        &self,
        launches: &mut Launches,
        placed: &Placed,
        before: Option<&Placed>,
        is_end: bool,
        end: RouterEnd,
    ) -> Result<()> {
        let layer = placed.layer;
        let threads = launches.prologue_threads();
        let width = if is_end {
            layer.outputs.next_power_of_two()
        } else {
            STEP_WIDTH
        };
        let blocks = layer.outputs.div_ceil(width) + usize::from(before.is_some());
        launches.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "score_layer<{}, {}, {}, {}, {width}, {threads}, {}, {}, {}>",
                layer.inputs,
                layer.outputs,
                layer.taps,
                layer.dilation,
                self.is_shared(),
                self.kv_heads,
                if is_end { self.map_name() } else { "-1" },
            ),
            grid: Grid::Blocks(self.kv_heads * blocks),
            threads,
            shared: threads / 32 * width * size_of::<f32>(),
            parameters: vec![
                Parameter::value(placed.from),
                Parameter::value(
                    before.map_or(RouterInputs::zeroed(), |before| RouterInputs {
                        outputs: before.found().start,
                        ..before.from
                    }),
                ),
                launches.vector(&layer.weight)?,
                launches.vector(&layer.bias)?,
                Parameter::pointer("float", placed.out),
                Parameter::value(end),
                launches.position(),
                Parameter::int(placed.ahead),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }

    /// One layer of a chunk.
    fn launch_tiles(&self, launches: &mut Launches, placed: &Placed) -> Result<()> {
        let layer = placed.layer;
        let width = layer.outputs.next_power_of_two().min(WIDTH);
        let bytes = |tile: usize| (tile + layer.past()) * layer.inputs * size_of::<f32>();
        let halves = (0..TILE.ilog2()).map(|times| TILE >> times);
        let mut fitting = halves.filter(|&tile| bytes(tile) <= TILE_BYTES);
        let tile = fitting.next().unwrap_or(1);
        launches.push_prefetching(Call {
            source: SOURCE,
            kernel: format!(
                "score_tile<{}, {}, {}, {}, {tile}, {width}, {}>",
                layer.inputs,
                layer.outputs,
                layer.taps,
                layer.dilation,
                self.is_shared(),
            ),
            grid: Grid::EachTile(self.kv_heads * layer.outputs.div_ceil(width), tile),
            threads: THREADS,
            shared: bytes(tile),
            parameters: vec![
                Parameter::value(placed.from),
                launches.vector(&layer.weight)?,
                launches.vector(&layer.bias)?,
                Parameter::pointer("float", placed.out),
                launches.position(),
                Parameter::int(placed.ahead),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }

    /// The scores of a chunk, and the stored inputs of all layers.
    fn launch_end(&self, launches: &mut Launches, placed: &[Placed], end: RouterEnd) {
        let mut layers = RouterLayers::zeroed();
        for (place, placed) in layers.at.iter_mut().zip(placed) {
            *place = placed.from;
        }
        let outputs = placed.last().map_or(0, |last| last.out);
        launches.push(Call {
            source: SOURCE,
            kernel: format!(
                "finish_scores<{}, {}, {}, {}>",
                self.weight.len() / self.bias.len(),
                self.kv_heads,
                self.map_name(),
                self.is_shared(),
            ),
            grid: Grid::EachTile(placed.len() * self.kv_heads, THREADS / 32),
            threads: THREADS,
            shared: 0,
            parameters: vec![
                Parameter::value(layers),
                Parameter::pointer("const float", outputs),
                Parameter::value(end),
                Parameter::int(launches.tokens),
                Parameter::tokens(),
            ],
        });
    }

    fn map_name(&self) -> &'static str {
        match self.map {
            ScoreMap::Sigmoid => "SIGMOID_LESS_HALF",
            ScoreMap::Relu => "POSITIVE",
        }
    }

    /// Whether all heads share the router.
    fn is_shared(&self) -> bool {
        self.bias.len() == 1
    }
}
