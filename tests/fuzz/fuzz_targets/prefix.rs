#![no_main]

#[path = "../../inputs/mod.rs"]
mod inputs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(inputs::prefix(bytes)));
