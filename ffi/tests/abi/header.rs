//! `waterline.h` is generated from the source.

use std::path::Path;

/// Compares the header with the source. `WATERLINE_WRITE_HEADER=1` writes it.
#[test]
fn the_header_is_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/lib.rs"))
        .generate()
        .expect("the source is understood");
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    let path = folder.join("waterline.h");
    if std::env::var_os("WATERLINE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &header).expect("waterline.h is written");
    }
    let committed = std::fs::read_to_string(&path).expect("waterline.h");
    assert!(
        committed == header,
        "waterline.h is older than the source; write it with\n  \
         WATERLINE_WRITE_HEADER=1 cargo test --release -p waterline-ffi the_header_is_current"
    );
}
