//! The CPU backend: a thread pool, vector primitives, and the context of a running op.

mod cores;
mod frame;
mod pool;
mod processor;
mod shared;
pub(crate) mod simd;

pub use cores::physical_cores;
pub use frame::{Buffers, Frame, room};
pub use pool::Pool;
pub(crate) use shared::{Shared, SharedArena};
