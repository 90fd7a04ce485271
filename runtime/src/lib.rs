//! waterline runs recurrent and hybrid language models in fixed memory: a session allocates everything when it is created
//! and never grows.
//!
//! ```no_run
//! use waterline::{GenerateOptions, Model, Session, SessionOptions};
//!
//! # fn main() -> waterline::Result<()> {
//! let model = Model::open("model.gguf")?;
//! let mut session = Session::new(model.clone(), SessionOptions::default())?;
//! let text = model.tokenizer()?.encode("Once upon a time")?;
//! session.feed(&model.bos().into_iter().chain(text).collect::<Vec<_>>())?;
//! for piece in session.generate(GenerateOptions::default())? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! This page lists the whole public API. Suggested reading order for the source: `model` (descriptions), `mixers` (one file each: its
//! equations, weights, state and ops), `program` and `ops` (the fused operations), `state` (the one buffer of a session), `engine` (runs
//! a program over it), `cpu` and `cuda` (backends), `session` (the main loop), `text` (tokenizer, chat templates), `arch` (third-party
//! file formats).

// The other modules live in the crates below, so that crates compile in parallel and code off the per-token path is optimized for size.
#[cfg_attr(not(feature = "constraints"), path = "no_constraint.rs")]
mod constraint;
mod engine;
mod grammar;
#[cfg(feature = "constraints")]
mod grammar_limits;
mod loaded;
mod session;
mod token_ids;

use waterline_compute::{
    cpu, cuda, functions, op_time, operands, ops, program, sampler, state, weights,
};
use waterline_error::{self as error, cancel};
use waterline_models::{lowering, mixers, model};
use waterline_text as text;

#[doc(inline)]
pub use cancel::Canceller;
pub use constraint::{Constraint, Constraints};
#[doc(inline)]
pub use cpu::{Pool, physical_cores};
#[doc(inline)]
pub use cuda::Device;
pub use engine::StepProgram;
#[doc(inline)]
pub use error::{Error, Result};
pub use grammar::Grammar;
pub use loaded::Model;
#[doc(inline)]
pub use mixers::{Retained, RetainedPolicy};
#[doc(inline)]
pub use model::{Embedding, Lengths, ModelSpec, OpenOptions, Pooling};
#[doc(inline)]
pub use op_time::OpTime;
#[doc(inline)]
pub use program::Schedule;
#[doc(inline)]
pub use sampler::SamplerParams;
pub use session::{
    Batch, Chat, ContextEnd, Description, Difference, EmbedOptions, Finish, Generate,
    GenerateOptions, Generation, HistoryRead, LogitsHook, Piece, Pooler, PrefixStore,
    PrefixStoreOptions, PrefixStoreStats, Receipt, ReceiptSession, Rows, SEGMENT, Session,
    SessionOptions, SessionPlan, StateFile, StateRecord, StateWriter, TensorEntry, ThoughtOptions,
};
#[doc(inline)]
pub use state::{
    Fingerprint, Kv, Snapshot, StateDtype, StateKind, StateOptions, StatePlan, StateTensorPlan,
    Touched,
};
#[doc(inline)]
pub use text::{
    Answer, AnswerParser, AnswerPart, AnswerSyntax, CallFormat, ChatTemplate, GrammarSettings,
    History, Message, NeededCalls, Role, Run, Runs, Start, TemplateOptions, ThoughtTags, Tokenizer,
    ToolCall, Tools, Turns,
};
pub use token_ids::TokenIds;

/// Internals that this repository's programs use to write and check model files. Not a stable interface.
#[doc(hidden)]
pub mod internal {
    pub use crate::error::base64;
    pub use crate::model::{Checkpoint, LayerSpec, TextFiles};
    pub use crate::session::{LogSoftmax, checkpoint_id, grid_of, seal_checkpoint};
    pub use crate::weights::{Precision, Tensors, WeightSpec};
    pub use waterline_quant::Bytes;
}

#[cfg(test)]
mod schedule_tests;

#[cfg(test)]
#[path = "../../tests/devices.rs"]
pub(crate) mod devices;
#[cfg(test)]
#[path = "../../tests/instrument.rs"]
pub(crate) mod instrument;
#[cfg(test)]
#[path = "../../tests/skipped.rs"]
pub(crate) mod skipped;

// Models with random weights for the tests. The integration tests in `tests` build them through this crate's public API.
#[cfg(test)]
extern crate self as waterline;
#[cfg(test)]
#[path = "../../tests/plain/mod.rs"]
pub(crate) mod plain;
#[cfg(test)]
#[path = "../../tests/synthetic/mod.rs"]
pub(crate) mod synthetic;
