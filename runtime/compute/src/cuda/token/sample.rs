//! Choice of a token on the device, which is described in `sample.cu`. The token is the one that [`crate::sampler::Sampler`] chooses.

use crate::abi::{DeviceType, device_struct};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::sampler::{SamplerParams, SamplerState};
use crate::state::{HEADER, HISTORY, LOGITS, SAMPLER};

const SOURCE: &[Source] = &[Source::new(
    "cuda/token/sample.cu",
    &[Sampling::define, SamplerState::define],
)];

device_struct! {
    /// Parameters of the choice, as kernels read them.
    #[derive(Debug, Default, PartialEq)]
    pub struct Sampling {
        temperature: f32,
        top_p: f32,
        min_p: f32,
        repetition: f32,
        frequency: f32,
        presence: f32,
        /// 0 for no cut.
        top_k: u32,
        /// Number of last tokens that penalties count.
        window: u32,
        /// 1 if a random number is drawn, else 0.
        pub draws: u32,
    }
}

impl Sampling {
    /// Returns the parameters with which a device chooses as `params` require; `None` if only the host can, because tokens have a bias.
    pub fn new(params: &SamplerParams) -> Option<Self> {
        if !params.logit_bias.is_empty() {
            return None;
        }
        let window = if params.penalizes() {
            params.penalty_window as u32
        } else {
            0
        };
        let sampling = Sampling {
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
            window,
            draws: 1,
        };
        if params.temperature > 0.0 {
            return Some(sampling);
        }
        // Only the most probable token is kept.
        Some(Sampling {
            temperature: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 1,
            draws: 0,
            ..sampling
        })
    }
}

/// Tokens of a warp, bins of the histogram, and tokens of a block, as in `sample.cu`.
const SEGMENT: usize = 256;
const BINS: usize = 1024;
const BLOCK: usize = 2048;
const HISTOGRAM_BLOCK: usize = 8192;

/// Returns the bytes of `Working` in `sample.cu`.
fn working_bytes(vocab: usize) -> usize {
    let segments = vocab.div_ceil(SEGMENT);
    let (halves, words) = (segments * SEGMENT, 5 + BINS + vocab + 2 * segments);
    2 * halves + 4 * words + 8 * (BINS + segments + 2) + 8
}

impl Launches<'_> {
    /// Chooses a token from the state's logits with the `Sampling` at `sampling`, and writes it to the place of the next chunk's tokens and
    /// to `chosen`.
    pub fn sample(&mut self, vocab: usize, sampling: Address, chosen: Address) -> Result<()> {
        let working = self.scratch_address(working_bytes(vocab))?;
        let working = || Parameter::pointer(&format!("Working<{vocab}>"), working);
        let sampling = || Parameter::pointer("const Sampling", sampling);
        let log = self.state_shape(HISTORY)[0];
        let parts = Grid::Blocks(vocab.div_ceil(BLOCK));
        let calls = [
            (
                format!("survey<{vocab}, {log}>"),
                (parts, 256),
                vec![
                    self.state("const float", LOGITS),
                    self.state("const u32", HISTORY),
                    self.state("const u64", HEADER),
                    sampling(),
                    working(),
                ],
            ),
            (
                format!("histogram<{vocab}>"),
                (Grid::Blocks(vocab.div_ceil(HISTOGRAM_BLOCK)), 1024),
                vec![sampling(), working()],
            ),
            (
                format!("cut<{vocab}>"),
                (Grid::Blocks(1), 1024),
                vec![sampling(), working()],
            ),
            (
                format!("draw<{vocab}>"),
                (parts, 256),
                vec![
                    sampling(),
                    self.state("SamplerState", SAMPLER),
                    Parameter::pointer("u32", self.memory.ids),
                    Parameter::pointer("u32", chosen),
                    working(),
                ],
            ),
        ];
        for (kernel, (grid, threads), parameters) in calls {
            self.push(Call {
                source: SOURCE,
                kernel,
                grid,
                threads,
                shared: 0,
                parameters,
            });
        }
        Ok(())
    }
}
