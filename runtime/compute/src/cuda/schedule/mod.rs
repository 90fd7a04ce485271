//! From ops to a schedule of kernels: calls with their memory, dependency levels, and the text that NVRTC compiles.

mod call;
mod launches;
pub(crate) mod levels;
mod source;

pub use call::{Call, Form, Grid, Parameter, Queued, Rows};
pub use launches::{Deferred, Launches, OpMemory, RotaryInputs, Rotation, SessionMemory};
pub use source::{Source, Text};
