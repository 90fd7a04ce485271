//! From ops to kernel calls: the calls with the memory that they access, and the texts of their files.

mod accesses;
mod call;
mod finish;
mod gemv;
mod launches;
mod recurrence;
mod row_ops;
mod source;

pub use accesses::OpMemory;
pub(crate) use accesses::{Accesses, overlap};
pub(crate) use call::Take;
pub use call::{Call, Form, Grid, Parameter, Queued, Rows};
pub(crate) use finish::Finish;
pub use gemv::Gemv;
pub(crate) use gemv::{Epilogue, StreamedMatrix};
pub(crate) use launches::DECODE_THREADS;
pub use launches::{Launches, Rooms, RotaryInputs, SessionMemory, Slot};
pub use recurrence::Recurrence;
pub(crate) use row_ops::{
    GateKind, MOST_GATES, MOST_GROUPS, MOST_MAPS, MOST_TAPS, MapKind, PrepareGate, PrepareGroup,
    PrepareMap, PrepareTasks, ROW_OPS,
};
pub use source::{Source, Text};
