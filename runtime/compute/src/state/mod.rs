//! A session's state: its state tensors, their layout, and copies of them.

mod arena;
mod finite;
mod identity;
mod plan;
mod rotary;
mod snapshot;
mod sparse;
mod stretch;
mod summed;
mod touched;

pub use arena::Arena;
pub use finite::is_sound;
pub use identity::{Fingerprint, Identity, hex};
pub use plan::{HEADER, HISTORY, LOGITS, SAMPLER};
pub use plan::{
    Kv, Size, StateDtype, StateKind, StateOptions, StatePlan, StateRange, StateTensor,
    StateTensorPlan,
};
pub use rotary::Rotary;
pub use snapshot::Snapshot;
pub use summed::Summed;
pub use touched::Touched;
