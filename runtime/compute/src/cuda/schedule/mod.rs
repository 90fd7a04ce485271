//! From ops to kernel calls: the calls as nodes, the memory that they access, and the texts of their files.

mod accesses;
mod attention;
mod call;
mod finish;
mod gemv;
mod launches;
mod node;
mod recurrence;
mod row_ops;
mod source;

pub use accesses::OpMemory;
pub(crate) use accesses::{Accesses, overlap};
pub use attention::Attention;
pub(crate) use attention::{Attended, Retained, RotaryInputs, Rotation};
pub use call::{Call, Grid, Parameter, Queued, Rows};
pub(crate) use finish::FinishedProduct;
pub use gemv::Gemv;
pub(crate) use gemv::{Epilogue, StreamedMatrix};
pub(crate) use launches::DECODE_THREADS;
pub use launches::{Launches, Rooms, SessionMemory, Slot};
pub use node::Node;
pub(crate) use recurrence::{RecurInput, RecurStep, STEP_INPUTS, StepInput, StepOperand};
pub use recurrence::{RecurInputs, Recurrence};
pub use row_ops::PrepareTasks;
pub(crate) use row_ops::{
    GateKind, MOST_GATES, MOST_GROUPS, MOST_MAPS, MOST_TAPS, MapKind, PrepareGate, PrepareGroup,
    PrepareMap, ROW_OPS,
};
pub use source::{Source, Text};
