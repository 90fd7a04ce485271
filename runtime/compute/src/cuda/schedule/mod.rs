//! From ops to kernel calls: the calls with the memory that they access, and the texts of their files.

mod accesses;
mod call;
mod gemv;
mod launches;
mod recurrence;
mod source;

pub(crate) use accesses::Accesses;
pub use accesses::OpMemory;
pub(crate) use call::Take;
pub use call::{Call, Form, Grid, Parameter, Queued, Rows};
pub use gemv::Gemv;
pub(crate) use gemv::{Epilogue, StreamedMatrix};
pub(crate) use launches::DECODE_THREADS;
pub use launches::{Launches, Rooms, RotaryInputs, SessionMemory, Slot};
pub use recurrence::Recurrence;
pub use source::{Source, Text};
