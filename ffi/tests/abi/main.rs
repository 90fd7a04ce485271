//! Tests the C interface as its users see it: the header, the installed libraries, and programs in C, C++ and Python that are built and run
//! here.

#[cfg(target_os = "linux")]
mod calls;
mod header;
#[cfg(target_os = "linux")]
mod installed;
#[cfg(target_os = "linux")]
mod programs;
#[cfg(target_os = "linux")]
mod python;
#[cfg(target_os = "linux")]
mod readme;
#[cfg(target_os = "linux")]
#[path = "../../../tests/skipped.rs"]
mod skipped;
