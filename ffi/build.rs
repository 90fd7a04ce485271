//! Sets the shared library's soname: `libwaterline.so.N`, where N is the version of the ABI.

fn main() {
    println!("cargo::rerun-if-changed=waterline.h");
    let header = std::fs::read_to_string("waterline.h").expect("waterline.h");
    let version = header
        .lines()
        .find_map(|line| line.strip_prefix("#define WL_ABI_VERSION "))
        .expect("waterline.h defines WL_ABI_VERSION")
        .trim();
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux" | "android" | "freebsd" | "netbsd" | "openbsd") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libwaterline.so.{version}");
            // C functions of other crates are not part of the interface.
            println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
        }
        Ok("macos" | "ios") => {
            println!(
                "cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libwaterline.{version}.dylib"
            );
        }
        _ => {}
    }
}
