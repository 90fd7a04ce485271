//! All targets in one program, which travels to machines without a compiler: WATERLINE_KIND names the kind of file. WATERLINE_SEEDS
//! names a folder in which it first writes the files that fuzzing starts from.
#![no_main]

mod forms;
#[path = "../../inputs/mod.rs"]
mod inputs;

use std::path::Path;
use std::sync::LazyLock;

use inputs::Kind;

/// Forms need the library's part for them, which the tests of the C library do without.
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
    // libFuzzer's hook ends the program at any panic, those that the library catches too; one that nobody catches ends it still.
    drop(std::panic::take_hook());
    if let Some(folder) = std::env::var_os("WATERLINE_SEEDS") {
        for (i, seed) in (kind.seeds)().into_iter().enumerate() {
            std::fs::write(Path::new(&folder).join(format!("seed-{i}")), seed).expect("a seed");
        }
    }
    kind.use_it
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(USE_IT(bytes)));
