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
//! What stands here is all that is public. Reading order of the rest: `spec` (what a model is), `mixers` (one file each:
//! its equations, weights, state and ops), `program` and `ops` (the fused operations), `state` (the one buffer of a
//! session), `cpu` and `cuda` (how ops run), `session` (the loop), `text` (tokenizer, chat templates), `arch` (other
//! people's configurations).

mod arch;
mod chat;
mod checkpoint;
mod cpu;
// Without GPUs some of what drives them is used by kernels built ahead of time alone, and some by nothing.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
mod cuda;
mod error;
mod experts;
mod feed_forward;
mod generate;
mod mixers;
mod model;
mod ops;
mod program;
mod sampler;
mod schedule;
mod session;
mod spec;
mod state;
mod text;
mod validate;

pub use chat::Chat;
pub use checkpoint::{Checkpoint, OpenOptions, TextFiles};
pub use cpu::{Pool, physical_cores};
pub use cuda::Device;
pub use error::{Error, Result};
pub use experts::{ExpertsSpec, SharedSpec};
pub use feed_forward::{FeedForward, MlpSpec};
pub use generate::{Finish, Generate, GenerateOptions, Generation, LogitsHook, Piece};
pub use mixers::{Retained, RetainedPolicy};
pub use model::Model;
pub use ops::{Activation, Groups, Router, Scoring};
pub use program::Tensors;
pub use sampler::{SamplerParams, SamplerState};
pub use schedule::Schedule;
pub use session::{
    Batch, Canceller, ContextEnd, PhaseTime, Session, SessionOptions, SessionPlan, StepForm,
    StepProgram,
};
pub use spec::{LayerSpec, ModelSpec, NormKind, Precision, Sublayer, WeightSpec};
pub use state::{
    Kv, Snapshot, StateDtype, StateKind, StateOptions, StatePlan, StateRange, StateTensorPlan,
    Touched,
};
pub use text::{
    ChatTemplate, Message, Piece as PromptPiece, Role, TemplateOptions, TextStream, Tokenizer,
    Turns,
};
pub use waterline_quant::Bytes;
