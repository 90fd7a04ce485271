//! Drafts by a model's MTP block on the CPU.

use std::sync::Arc;

use crate::cpu::{Pool, room};
use crate::error::Result;
use crate::model::Draft;
use crate::program::Workspace;
use crate::sampler::most_probable;
use crate::state::{Arena, HEADER};

/// Memory to run the block token by token.
pub(super) struct HostDraft {
    workspace: Workspace,
    /// The block's normalized output for its last token.
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

impl HostDraft {
    pub fn new(draft: &Draft, pool: &Arc<Pool>) -> Result<Self> {
        let matrix = &draft.program.logits.matrix;
        Ok(HostDraft {
            workspace: Workspace::new(&draft.program, Arc::clone(pool), 1)?,
            hidden: room(matrix.cols())?,
            logits: room(matrix.rows())?,
        })
    }

    /// Size in bytes of the working memory that [`HostDraft::new`] would allocate.
    pub fn plan(draft: &Draft, threads: usize) -> usize {
        let matrix = &draft.program.logits.matrix;
        let floats = matrix.cols() + matrix.rows();
        Workspace::plan(&draft.program, threads, 1) + floats * size_of::<f32>()
    }

    /// Size of working memory in bytes.
    pub fn bytes(&self) -> usize {
        let floats = self.hidden.len() + self.logits.len();
        self.workspace.bytes() + floats * size_of::<f32>()
    }

    /// Appends up to `count` tokens to `tokens`, whose last one comes directly after those that the state has read. The block reads them
    /// into `copy`, which receives only the block's tensors of `state`.
    pub fn run(
        &mut self,
        draft: &Draft,
        (state, copy): (&Arena, &mut Arena),
        tokens: &mut Vec<u32>,
        count: usize,
    ) {
        let Some(mut token) = tokens.last().copied().filter(|_| count > 0) else {
            return;
        };
        let position = state.tensor::<u64>(HEADER)[0];
        copy.copy_tensors_from(state, draft.first_tensor);
        self.hidden.copy_from_slice(state.tensor(draft.last));
        let program = &draft.program;
        for i in 0..count {
            let before = self.workspace.first_row(draft.before);
            before.copy_from_slice(&self.hidden);
            self.workspace
                .run(program, copy, &[token], position + i as u64);
            self.workspace.logits(program, 0..1, &mut self.logits);
            self.hidden
                .copy_from_slice(self.workspace.residual(program, 0..1));
            program.logits.norm.apply_in_place(&mut self.hidden);
            // A draft may end early: if the logits are invalid, the model's own logits report it.
            let Ok(next) = most_probable(&self.logits) else {
                return;
            };
            token = next;
            tokens.push(token);
        }
    }
}
