//! Tests of sessions on the emulator, or on a GPU if available.

mod batches;
#[cfg(feature = "emulator")]
mod chunks;
#[cfg(feature = "emulator")]
mod deadline;
#[cfg(feature = "emulator")]
mod levels;
#[cfg(feature = "emulator")]
mod lost;
#[cfg(feature = "emulator")]
mod shared;
mod tiled;
