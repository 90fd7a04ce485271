//! The kernels that a session launches for a chunk, for logits, and for a step.

use crate::cuda::{DecodeKernel, Device, Grid, Launch, Queue, Queued, Recording};
use crate::error::Result;

/// A launch that is adjusted to the number of tokens.
pub(super) struct Template {
    pub launch: Launch,
    grid: Grid,
    /// Indices of the arguments that hold the number of tokens.
    tokens: Vec<usize>,
}

impl Template {
    pub fn fit(&mut self, tokens: usize) {
        self.launch.grid = self.grid.blocks(tokens);
        self.launch.cluster = self.grid.cluster(tokens) as u32;
        for &argument in &self.tokens {
            self.launch.arguments[argument].0[0] = tokens as u64;
        }
    }
}

/// The programs of a session.
pub(super) struct Programs {
    /// Reads a chunk.
    pub chunk: Vec<Template>,
    /// Computes the logits of row 0 of the residual stream into the state.
    pub logits: Vec<Template>,
    /// Reads one token from the ids into the state and computes its logits.
    pub step: Box<dyn Recording>,
    /// Chooses the most probable token (the first among equals) and reads it.
    pub greedy: Box<dyn Recording>,
    /// Samples a token and reads it.
    pub sample: Box<dyn Recording>,
    /// The kernel of all three recordings, if a step is one kernel.
    pub persistent: Option<DecodeKernel>,
}

/// The calls of a session's programs.
pub(super) struct Calls {
    pub chunk: Vec<Queued>,
    /// Computes the logits of one token.
    pub logits: Vec<Queued>,
    /// Samples a token.
    pub sample: Vec<Queued>,
    /// Chooses the most probable token, then runs a step with its logits.
    pub step: Vec<Queued>,
    /// The number of calls at the beginning of `step` that choose the token.
    pub choice: usize,
}

impl Calls {
    /// Calls that are always separate kernels, whatever the form of a step.
    pub fn always(&self) -> impl Iterator<Item = &Queued> {
        let parts = [&self.chunk, &self.logits, &self.sample];
        parts.into_iter().flatten()
    }
}

impl Programs {
    pub fn new(
        calls: &Calls,
        persistent: Option<DecodeKernel>,
        device: &Device,
        queue: &dyn Queue,
    ) -> Result<Self> {
        let recorded: &[Queued] = if persistent.is_some() {
            &[]
        } else {
            &calls.step
        };
        let all: Vec<&Queued> = calls.always().chain(recorded).collect();
        let kernels = device.kernels(&all)?;
        let template = |(queued, kernel): (&&Queued, _)| Template {
            launch: queued.launch(kernel, 1),
            grid: queued.call.grid,
            tokens: queued.call.arguments().1,
        };
        let mut chunk: Vec<Template> = all.iter().zip(kernels).map(template).collect();
        let mut logits = chunk.split_off(calls.chunk.len());
        let rest = logits.split_off(calls.logits.len());
        let mut sample: Vec<Launch> = rest.into_iter().map(|template| template.launch).collect();
        let step = sample.split_off(calls.sample.len());
        let (step, greedy) = match &persistent {
            Some(persistent) => (
                vec![persistent.launch(calls.choice)],
                vec![persistent.launch(0)],
            ),
            None => (step[calls.choice..].to_vec(), step),
        };
        sample.extend_from_slice(&step);
        queue.finish()?;
        Ok(Programs {
            chunk,
            logits,
            step: queue.record(&step)?,
            greedy: queue.record(&greedy)?,
            sample: queue.record(&sample)?,
            persistent,
        })
    }
}
