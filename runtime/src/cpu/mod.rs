//! The CPU backend: a thread pool, vector primitives, and what an op sees while it runs.

mod cores;
mod engine;
mod pool;
mod shared;
pub(crate) mod simd;
mod together;

pub use cores::physical_cores;
pub(crate) use engine::{Buffers, Engine, Frame};
pub use pool::Pool;
pub(crate) use shared::{Shared, SharedArena};
pub(crate) use together::{States, Together};
