//! The waterline runtime.
