//! Builds and runs C and C++ programs with the installed library, as their authors would.

use std::process::Command;

use crate::installed::{build, has, pkg_config, prefix, run, run_on, scratch, source, succeeds};

const CONVERSATION: &str = "Hello! My name is Anna.\nTell me a story.\n/undo\nWhat is my name?\n";

fn answers_with_the_name(said: &str) {
    let last = said.lines().last().expect("an answer");
    assert!(last.contains("Anna"), "{said}");
}

#[test]
fn only_the_interface_is_visible() {
    let library = prefix().join("lib/libwaterline.so");
    let symbols = succeeds(
        Command::new("nm")
            .args(["--dynamic", "--defined-only", "--format=just-symbols"])
            .arg(&library),
    );
    let symbols = String::from_utf8(symbols.stdout).expect("names are text");
    let header = std::fs::read_to_string(source("waterline.h")).expect("waterline.h");
    let mut count = 0;
    for symbol in symbols.lines() {
        assert!(
            header.contains(&format!("{symbol}(")),
            "{symbol} is no part of the header"
        );
        count += 1;
    }
    assert!(count > 30, "{symbols}");

    let dynamic = succeeds(Command::new("readelf").arg("-d").arg(&library)).stdout;
    let dynamic = String::from_utf8(dynamic).expect("text");
    let abi = header
        .lines()
        .find_map(|line| line.strip_prefix("#define WL_ABI_VERSION "));
    let soname = format!("soname: [libwaterline.so.{}]", abi.expect("a version"));
    assert!(dynamic.contains(&soname), "{dynamic}");
}

#[test]
fn the_header_is_c_and_cpp() {
    for (compiler, standard, language) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "c++")] {
        let mut command = Command::new(compiler);
        command
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
                "-x",
                language,
            ])
            .arg(source("waterline.h"));
        succeeds(&mut command);
    }
}

#[test]
fn a_c_program_chats() {
    answers_with_the_name(&run_on(build("cc", "examples/c/chat.c"), CONVERSATION));
}

#[test]
fn a_newcomer_completes_and_talks() {
    let said = run_on(build("cc", "tests/programs/newcomer.c"), "");
    let lines: Vec<&str> = said.lines().collect();
    let name = lines.len().checked_sub(2).map_or("", |at| lines[at]);
    assert!(
        name.contains("Anna") && lines.last() == Some(&"short"),
        "{said}"
    );
}

#[test]
fn a_history_is_read_at_once_and_its_seed_gives_the_same_words() {
    let program = build("cc", "examples/c/history.c");
    let said = run_on(&program, "");
    assert!(said.contains("Miso") && said.contains("seed 42"), "{said}");
    let answer = |said: &str| said.lines().next().map(String::from);
    assert_eq!(answer(&said), answer(&run_on(&program, "")));
}

#[test]
fn tokens_are_shown_forbidden_drafted_and_batched() {
    let said = run_on(build("cc", "examples/c/tokens.c"), "");
    let tokens: Vec<&str> = said.lines().filter(|line| line.contains('"')).collect();
    let id = |line: &str| line.split_whitespace().next().map(String::from);
    assert!(
        tokens.len() == 8 && id(tokens[0]) != id(tokens[4]),
        "{said}"
    );
    assert!(said.contains("drafted tokens were right"), "{said}");
    assert!(
        said.contains("My name is Anna. -> ") && said.matches(" -> ").count() == 2,
        "{said}"
    );
    assert!(
        said.lines()
            .rev()
            .nth(1)
            .is_some_and(|line| line.ends_with(['.', '!', '?'])),
        "{said}"
    );
}

#[test]
fn a_cpp_program_answers_three_at_once() {
    let said = run_on(build("c++", "examples/cpp/together.cpp"), "");
    assert!(
        said.matches(" -> ").count() == 3 && said.matches(" (0.").count() >= 4,
        "{said}"
    );
}

/// A program finds the library in each way that README.md names: by rpath or by LD_LIBRARY_PATH; without either it fails to start.
#[test]
fn readme_says_how_a_program_finds_the_library() {
    let readme = std::fs::read_to_string(source("README.md")).expect("README.md");
    let program = scratch("waterline-programs").join("found");
    let library = prefix().join("lib");
    let compile = |flags: &str| {
        let line = "cc chat.c -o chat $(pkg-config --cflags --libs waterline)";
        assert!(readme.contains(line) && readme.contains(flags), "{flags}");
        let rpath = flags.replace("PREFIX", &prefix().display().to_string());
        let line = line.replace("chat.c", &source("examples/c/chat.c").display().to_string());
        let line = line.replace("-o chat", &format!("-o {}", program.display()));
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{line} {rpath}")])
            .env("PKG_CONFIG_PATH", library.join("pkgconfig"));
        succeeds(&mut shell);
    };
    compile("");
    let mut plain = Command::new(&program);
    let missing = plain
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(
        !missing.status.success() && said.contains("libwaterline.so"),
        "{said}"
    );
    answers_with_the_name(&run(
        Command::new(&program).env("LD_LIBRARY_PATH", &library),
        CONVERSATION,
    ));
    compile("-Wl,-rpath,PREFIX/lib");
    answers_with_the_name(&run_on(&program, CONVERSATION));
}

#[test]
fn the_contract_holds() {
    let program = build("cc", "tests/programs/contract.c");
    let said = succeeds(Command::new(program).arg(scratch("waterline-contract"))).stdout;
    assert_eq!(said, b"0 failures\n");
}

#[test]
fn eight_threads_and_sixteen_sessions_say_what_one_thread_says() {
    let program = build("cc", "tests/programs/stress.c");
    let said = succeeds(
        Command::new(program)
            .args(["3", "7"])
            .arg(scratch("waterline-stress")),
    );
    println!("{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn a_hundred_thousand_random_calls_end_with_a_status() {
    let program = build("cc", "tests/programs/hammer.c");
    let model = source("../tests/models/gdn.gguf");
    let said = succeeds(Command::new(program).args(["100000", "1"]).arg(model));
    println!("{}", String::from_utf8_lossy(&said.stdout));
}

#[test]
fn valgrind_finds_no_errors_and_no_leaks() {
    if !has("valgrind", &["--version"]) {
        return;
    }
    let suppressions = format!("--suppressions={}", source("valgrind.supp").display());
    let program = build("cc", "examples/c/chat.c");
    let said = run(
        Command::new("valgrind")
            .args(["--quiet", "--leak-check=full", "--error-exitcode=9"])
            .args([
                "--errors-for-leak-kinds=definite,indirect,possible",
                "--fair-sched=yes",
            ])
            .arg(suppressions)
            .arg(program),
        "My name is Anna.\n/undo\nHello.\n",
    );
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn a_cpp_program_tells_two_stories() {
    let said = run_on(build("c++", "examples/cpp/stories.cpp"), "");
    let stories: Vec<&str> = said.lines().filter(|line| !line.starts_with('(')).collect();
    assert!(said.matches("(40 tokens)").count() == 2, "{said}");
    assert!(
        stories.len() >= 2 && stories[0] != stories[stories.len() - 1],
        "{said}"
    );
}

#[test]
fn the_cpp_wrapper_keeps_its_promises() {
    let program = build("c++", "tests/programs/wrapper.cpp");
    assert_eq!(run_on(program, ""), "0 failures\n");
}

#[test]
fn the_static_library_needs_nothing_of_waterline_at_run_time() {
    let program = scratch("waterline-programs").join("chat-static");
    let library = prefix().join("lib/libwaterline.a");
    let private = pkg_config(&["--libs", "--static"]);
    let private = private
        .iter()
        .filter(|flag| *flag != "-lwaterline" && !flag.starts_with("-L"));
    let mut command = Command::new("cc");
    command
        .arg(source("examples/c/chat.c"))
        .arg(library)
        .args(private)
        .args(pkg_config(&["--cflags"]))
        .arg("-o")
        .arg(&program);
    succeeds(&mut command);
    answers_with_the_name(&run_on(program, CONVERSATION));
}

#[test]
fn a_cmake_project_finds_the_library() {
    if !has("cmake", &["--version"]) {
        return;
    }
    let folder = scratch("waterline-cmake");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix().display());
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(source("examples/cmake"))
        .arg("-B")
        .args([folder.as_os_str(), prefix.as_ref()]);
    succeeds(&mut configure);
    succeeds(Command::new("cmake").arg("--build").arg(&folder));
    answers_with_the_name(&run_on(folder.join("chat"), CONVERSATION));
    assert!(run_on(folder.join("stories"), "").contains("(40 tokens)"));
}
