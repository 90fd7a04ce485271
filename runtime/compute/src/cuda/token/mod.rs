//! Kernels before and after a session's ops: the choice of a token, the history and the position.

pub(crate) mod sample;

use crate::cuda::driver::Address;
use crate::cuda::schedule::{Call, Grid, Launches, Node, Parameter, Source};
use crate::error::Result;
use crate::state::{HEADER, HISTORY, LOGITS};

const SESSION: &[Source] = &[Source::new("cuda/token/token.cu", &[])];

/// Threads of a block that finds the largest logit, and logits per thread.
const CHOICE_THREADS: usize = 128;
const CHOICE_RUN: usize = 4;

impl Launches<'_> {
    /// Writes the first token with the largest of the logits at `logits` to the place of the next chunk's tokens, and to `chosen`.
    pub fn choose(&mut self, vocab: usize, logits: Address, chosen: Address) -> Result<()> {
        let parts = vocab.div_ceil(CHOICE_THREADS * CHOICE_RUN);
        let best = self.scratch_address(parts * size_of::<u64>())?;
        self.push(Call {
            source: SESSION,
            kernel: format!("best_of_part<{vocab}, {CHOICE_RUN}>"),
            grid: Grid::Blocks(parts),
            threads: CHOICE_THREADS,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const float", logits),
                Parameter::pointer("u64", best),
            ],
        });
        let bytes = |first: Address, bytes: usize| first..first + bytes as u64;
        let keys = [bytes(best, parts * size_of::<u64>())];
        // Slots choose last, at once; a step reads the token that it has chosen.
        let is_last = self.slot.position.is_some();
        if is_last {
            self.narrow_accesses(&[bytes(logits, vocab * size_of::<f32>())], &keys);
        }
        self.push(Call {
            source: SESSION,
            kernel: format!("choose<{parts}>"),
            grid: Grid::Blocks(1),
            threads: CHOICE_THREADS,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const u64", best),
                Parameter::pointer("u32", self.memory.ids),
                Parameter::pointer("u32", chosen),
            ],
        });
        if is_last {
            let written = [self.memory.ids, chosen].map(|id| bytes(id, size_of::<u32>()));
            self.narrow_accesses(&keys, &written);
        }
        Ok(())
    }

    /// Ends a chunk: its tokens go to the log, and the position advances.
    pub fn advance(&mut self) {
        let log = self.state_shape(HISTORY)[0];
        let call = Call {
            source: SESSION,
            kernel: format!("advance<{log}>"),
            grid: Grid::Blocks(1),
            threads: 256,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const u32", self.memory.ids),
                self.state("u32", HISTORY),
                Parameter::pointer("u64", self.state_address(HEADER)),
                Parameter::tokens(),
            ],
        };
        self.push_node(call, Node::Waits).block_local = true;
    }

    /// Writes the positions of the next tokens, whose number is the parameter `tokens`, to `positions`.
    pub fn count_positions(&mut self, positions: Address, tokens: Parameter) {
        let call = Call {
            source: SESSION,
            kernel: "count_positions".into(),
            grid: Grid::Blocks(1),
            threads: 64,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const u64", self.state_address(HEADER)),
                Parameter::pointer("u64", positions),
                tokens,
            ],
        };
        self.push_node(call, Node::Waits).block_local = true;
    }

    /// Copies the logits at `from` to the logits of the state.
    pub fn copy_logits(&mut self, vocab: usize, from: Address) {
        const THREADS: usize = 256;
        self.push(Call {
            source: SESSION,
            kernel: format!("copy_logits<{vocab}>"),
            grid: Grid::Blocks(vocab.div_ceil(THREADS)),
            threads: THREADS,
            shared: 0,
            parameters: vec![
                Parameter::pointer("const float", from),
                self.state("float", LOGITS),
            ],
        });
    }
}
