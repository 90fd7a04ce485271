//! Number formats and model files.
