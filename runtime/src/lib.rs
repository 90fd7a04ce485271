//! waterline decodes recurrent and hybrid language models in fixed memory: everything a session needs is allocated
//! when it is made, and nothing grows while tokens are read.
//!
//! ```no_run
//! use waterline::{GenerateOptions, Model, Session, SessionOptions};
//!
//! # fn main() -> waterline::Result<()> {
//! let model = Model::open("model.gguf")?;
//! let mut session = Session::new(model.clone(), SessionOptions::default())?;
//! session.feed(&model.tokenizer()?.encode("Once upon a time")?)?;
//! for piece in session.generate(GenerateOptions::default())? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What stands here is all that is public. Reading order of the rest: `model` (what a model is), `mixers` (one file each:
//! its equations, weights, state and ops), `program` and `ops` (the fused operations), `state` (the one buffer of a
//! session), `engine` (runs a program over it), `cpu` and `cuda` (what ops run on), `session` (the loop), `text`
//! (tokenizer, chat templates), `arch` (other people's files).

mod arch;
mod cancel;
mod config;
mod cpu;
// Without GPUs some of what drives them is used by kernels built ahead of time alone, and some by nothing.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod cuda;
mod engine;
mod error;
mod feed_forward;
mod functions;
mod lowering;
mod mixers;
mod model;
mod operands;
mod ops;
mod program;
mod sampler;
mod session;
mod state;
mod text;
mod weights;

pub use cancel::Canceller;
pub use cpu::{Pool, physical_cores};
pub use cuda::{Device, OpTime};
pub use engine::StepProgram;
pub use error::{Error, Result};
pub use mixers::{Retained, RetainedPolicy};
pub use model::{Checkpoint, LayerSpec, Model, ModelSpec, OpenOptions, TextFiles};
pub use program::Schedule;
pub use sampler::SamplerParams;
pub use session::{
    Batch, Chat, ContextEnd, Finish, Generate, GenerateOptions, Generation, LogitsHook, Piece,
    Session, SessionOptions, SessionPlan,
};
pub use state::{
    Kv, Snapshot, StateDtype, StateKind, StateOptions, StatePlan, StateTensorPlan, Touched,
};
pub use text::{ChatTemplate, Message, Role, Tokenizer, Turns};
pub use waterline_quant::Bytes;
pub use weights::{Precision, Tensors, WeightSpec};

#[cfg(test)]
#[path = "../../tests/skipped.rs"]
pub(crate) mod skipped;

// Models with random weights, which the tests of the folder `tests` describe by this crate's public face.
#[cfg(test)]
extern crate self as waterline;
#[cfg(test)]
#[path = "../../tests/plain/mod.rs"]
pub(crate) mod plain;
#[cfg(test)]
#[path = "../../tests/synthetic/mod.rs"]
pub(crate) mod synthetic;
