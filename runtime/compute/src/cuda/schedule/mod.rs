//! From ops to a schedule of kernels: calls with their memory, dependency levels, and the text that NVRTC compiles.

mod call;
mod finish;
mod launches;
pub(crate) mod levels;
pub(crate) mod source;

pub use call::{Call, Form, Grid, Parameter, Queued, Rows};
pub(crate) use finish::Finish;
pub use launches::{Deferred, Launches, OpMemory, RotaryInputs, Rotation, SessionMemory};
