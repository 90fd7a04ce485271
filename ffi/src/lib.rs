//! The C interface of waterline. The header `waterline.h`, generated from these comments, is its manual.
//!
//! Every exported function runs inside `status::border`, which turns a failure into a status and a sentence and keeps panics inside the
//! library. Handles are numbers in a table (`handles`), so a wrong handle is detected without reading memory through it. Pointers from C
//! are converted to Rust values in one place (`pointers`).

// The header's names follow C conventions, so the Rust items do too.
#![allow(non_camel_case_types)]
// Each function's comment, and the header's introduction for all of them, states the caller's obligations.
#![allow(clippy::missing_safety_doc)]

// Declared in the order of the header. Blank lines separate them, because rustfmt sorts adjacent modules.
mod status;

mod log;

mod model;

mod text;

mod sampling;

mod store;

mod session_params;

mod session;

mod embed;

mod progress;

mod constraint;

mod batch;

mod generate;

mod chat;

mod answer;

mod render;

mod state;

mod generation;
mod handles;
mod hooks;
mod open_session;
mod params;
mod pointers;

use std::ffi::c_char;

/// The version of this interface. It increases with every change that breaks programs built earlier, and is part of the library's soname.
pub const WL_ABI_VERSION: u32 = 1;

/// Returns the WL_ABI_VERSION that the library was built with, to compare with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn wl_abi_version() -> u32 {
    WL_ABI_VERSION
}

/// Returns the library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn wl_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
