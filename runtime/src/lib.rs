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

// Three crates hold the modules, so that several are compiled at once and those that no token waits for are built to be small:
// `compute.rs` and `models.rs` are the roots of the lower two.
mod bound;
mod engine;
mod session;

#[cfg(not(test))]
use waterline_compute::{cpu, cuda, error, operands, ops, program, sampler, state, weights};
#[cfg(not(test))]
use waterline_models::{cancel, lowering, mixers, model, text};

// Unit tests reach into all modules, so they have all in this crate.
#[cfg(test)]
mod arch;
#[cfg(test)]
mod cancel;
#[cfg(test)]
mod config;
#[cfg(test)]
mod cpu;
#[cfg(test)]
mod cuda;
#[cfg(test)]
mod error;
#[cfg(test)]
mod feed_forward;
#[cfg(test)]
mod functions;
#[cfg(test)]
mod lowering;
#[cfg(test)]
mod mixers;
#[cfg(test)]
mod model;
#[cfg(test)]
mod operands;
#[cfg(test)]
mod ops;
#[cfg(test)]
mod program;
#[cfg(test)]
mod sampler;
#[cfg(test)]
mod state;
#[cfg(test)]
mod text;
#[cfg(test)]
mod weights;

pub use bound::Model;
#[doc(inline)]
pub use cancel::Canceller;
#[doc(inline)]
pub use cpu::{Pool, physical_cores};
#[doc(inline)]
pub use cuda::{Device, OpTime};
pub use engine::StepProgram;
#[doc(inline)]
pub use error::{Error, Result};
#[doc(inline)]
pub use mixers::{Retained, RetainedPolicy};
#[doc(inline)]
pub use model::{ModelSpec, OpenOptions};
#[doc(inline)]
pub use program::Schedule;
#[doc(inline)]
pub use sampler::SamplerParams;
pub use session::{
    Batch, Chat, ContextEnd, Finish, Generate, GenerateOptions, Generation, LogitsHook, Piece,
    Session, SessionOptions, SessionPlan,
};
#[doc(inline)]
pub use state::{
    Kv, Snapshot, StateDtype, StateKind, StateOptions, StatePlan, StateTensorPlan, Touched,
};
#[doc(inline)]
pub use text::{ChatTemplate, Message, Role, Tokenizer, Turns};

/// What the programs of this repository take besides, to write and to check model files. It has no stable interface.
#[doc(hidden)]
pub mod internal {
    pub use crate::model::{Checkpoint, LayerSpec, TextFiles};
    pub use crate::weights::{Precision, Tensors, WeightSpec};
    pub use waterline_quant::Bytes;
}

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
