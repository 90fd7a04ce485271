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
    /// The inputs of a layer: first the inputs stored before the chunk, oldest first, then the chunk's inputs, which are keys
    /// and values for the first layer (`outputs` is null) and rows of the previous layer for the others.
    struct RouterInputs {
        k: Rows,
        v: Rows,
        /// For each key head, `chunk` rows.
        outputs: Address as *mut f32,
        /// For each key head, `past` rows.
        history: Address as *mut f32,
        /// Destination for a copy of a single token's inputs, in rows like those of `outputs`, or null: the source may be
        /// overwritten before the next layer stores the inputs.
        copy: Address as *mut f32,
        inputs: i32,
        past: i32,
        chunk: i32,
        pad: i32,
    }
    "__device__ float at(int head, int t, int channel) const"
}

device_struct! {
    /// The map from the last layer's outputs to a score.
    struct RouterEnd {
        weight: Address as *const f32,
        bias: Address as *const f32,
        /// Null in a decode kernel that stores to `window`.
        out: Rows,
        /// The scores of the heads' windows, `rows` per head, for storing the score of the token `margin` before a single token
        /// at once; or null.
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
/// Most outputs of a thread block, one per lane. For a single token, more blocks with fewer outputs read more of the weights at once.
const WIDTH: usize = 32;
const STEP_WIDTH: usize = 8;
/// Threads per block for a chunk, most tokens of its tile, and most bytes of the tile's inputs.
const THREADS: usize = 256;
const TILE: usize = 64;
const TILE_BYTES: usize = 48 << 10;

/// A layer with its kernel arguments.
struct Placed<'a> {
    layer: &'a RouterLayer,
    from: RouterInputs,
    out: Address,
    /// How far this layer and all earlier ones look ahead together.
    ahead: usize,
    /// The memory of the layer's inputs, of the inputs that it keeps, and of its outputs.
    inputs: [Range<Address>; 2],
    history: Range<Address>,
    outputs: Range<Address>,
    /// The memory of the copy of a single token's inputs for the next layer, empty without a copy.
    copy: Range<Address>,
}

impl Placed<'_> {
    /// The memory in which the next layer finds a single token's inputs of this layer.
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
        // The last layer computes the score of a single token, if one thread block has all outputs, and stores it in the window
        // at once: in a chunk, or with batch slots that are tokens of one state, tokens may first have to leave the window.
        let last = self.weight.len() / self.bias.len();
        let ends = launches.tokens == 1 && last <= WIDTH;
        let stores = ends && margin > 0 && launches.slot.position.is_none();
        let window = self.window.filter(|_| stores);
        if let Some(tensor) = window {
            end.window = launches.state_address(tensor);
            end.rows = launches.state_shape(tensor)[1] as i32;
            // In a decode kernel, attention finds the score in the window, and a later layer may already use these columns.
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
            // In a decode kernel, the columns may be overwritten before the second layer stores them.
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

    /// Launches one layer for a single token, which also stores the inputs of the layer `before` and, as the last layer,
    /// computes the score.
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

    /// Launches one layer for a chunk.
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

    /// Launches the scores of a chunk, and stores the inputs of all layers.
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
