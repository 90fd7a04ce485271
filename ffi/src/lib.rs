//! The C interface of waterline. Its manual is the header `waterline.h`, which is written from these comments.
//!
//! Every exported function goes through `status::border`: a failure becomes a status and a sentence, and a panic never
//! leaves the library. Handles are numbers in a table (`handles`), so that a wrong one is found out without reading
//! memory at it. Pointers from C are turned into Rust values in one place (`pointers`).

// The header speaks C, and so do the names that are in it.
#![allow(non_camel_case_types)]
// Each function's comment, and the header's first comment for all of them, states the caller's
// obligations.
#![allow(clippy::missing_safety_doc)]

// In the order of the header. Empty lines between them, because rustfmt sorts adjacent modules.
mod status;

mod log;

mod model;

mod text;

mod sampling;

mod store;

mod session_params;

mod session;

mod progress;

mod constraint;

mod batch;

mod generate;

mod chat;

mod state;

mod generation;
mod handles;
mod hooks;
mod open_session;
mod params;
mod pointers;

use std::ffi::c_char;

/// Counts changes of this interface that break programs built before. It is the number in the library's soname.
pub const WL_ABI_VERSION: u32 = 1;

/// WL_ABI_VERSION of the library, to compare with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn wl_abi_version() -> u32 {
    WL_ABI_VERSION
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn wl_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
