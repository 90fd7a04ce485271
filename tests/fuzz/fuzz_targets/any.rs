//! All targets in one program, which can be copied to machines without a compiler. WATERLINE_KIND names the kind of file. The program first
//! writes the seed files for fuzzing to the folder WATERLINE_SEEDS, if it is set.
#![no_main]

mod forms;
#[allow(dead_code, reason = "only the mutations ask whether a kind is text")]
#[path = "../../inputs/mod.rs"]
mod inputs;

use std::path::Path;
use std::sync::LazyLock;

use inputs::Kind;

/// Constraints need a feature of the library that the tests of the C library do not use.
const FORM: Kind = Kind {
    name: "form",
    is_text: true,
    seeds: forms::form_seeds,
    use_it: forms::form,
};

static USE_IT: LazyLock<fn(&[u8]) -> bool> = LazyLock::new(|| {
    let name = std::env::var("WATERLINE_KIND").expect("WATERLINE_KIND");
    let mut kinds = inputs::KINDS.iter().chain([&FORM]);
    let kind = kinds.find(|kind| kind.name == name);
    let kind = kind.expect("a kind");
    // libFuzzer's hook aborts at every panic, including those that the library catches. Without the hook, an uncaught panic still ends the
    // program.
    drop(std::panic::take_hook());
    if let Some(folder) = std::env::var_os("WATERLINE_SEEDS") {
        for (i, seed) in (kind.seeds)().into_iter().enumerate() {
            std::fs::write(Path::new(&folder).join(format!("seed-{i}")), seed).expect("a seed");
        }
    }
    kind.use_it
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    USE_IT(bytes);
});
