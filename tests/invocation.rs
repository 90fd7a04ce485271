//! Command lines as people type them: omissions and mistakes.

mod common;

use common::{Workplace, copy_fixture, outcome_of_input};

/// Wrong command lines, and parts of the expected error messages.
#[test]
fn a_wrong_command_line_is_answered_with_the_right_one() {
    let place = Workplace::new();
    for (arguments, parts) in [
        (
            &["insepct", "m.gguf"][..],
            &["\"insepct\"", "waterline inspect m.gguf"][..],
        ),
        (&["explode"], &["\"explode\"", "waterline --help"]),
        (&["absent.gguf"], &["absent.gguf", "no such file"]),
        (
            &["Once upon a time"],
            &["waterline run 'Once upon a time'", "waterline chat"],
        ),
        (
            &["chat", "Hello there"],
            &["no such file", "waterline run 'Hello there'"],
        ),
        (
            &["chat", "Hello"],
            &["no such file", "waterline run Hello", "waterline chat"],
        ),
        (
            &["run", "Once upon", env!("CARGO_MANIFEST_DIR")],
            &["waterline run /", " 'Once upon'"],
        ),
        (&["hf://fla-hub"], &["\"fla-hub\"", "org/name"]),
        (
            &["chat", "m.gguf", "hi"],
            &["\"hi\"", "waterline run m.gguf hi"],
        ),
        (
            &["bench", "--mtp", "3"],
            &["--mtp: bench drafts no tokens", "--json --mtp 3"],
        ),
        (
            &["eval", "ppl", "a.txt", "--lookup", "3"],
            &["--lookup: eval drafts no tokens", "--json --lookup 3"],
        ),
        (
            &["help", "nope"],
            &["\"nope\"", "waterline --help lists them"],
        ),
        (
            &["eval", "ppl", "x", "--nonsense"],
            &["waterline eval ppl --help lists them"],
        ),
        (
            &["run", "x", "--sessions", "8"],
            &["--sessions", "bench has it"],
        ),
        (
            &["run", "x", "--nonsense"],
            &["waterline run --help lists them"],
        ),
        (
            &["run", "x", "-c", "many"],
            &["--context: \"many\": expected a whole number"],
        ),
        (
            &["chat", "--thinking", "on"],
            &["thinking: the model's chat template has no switch"],
        ),
        (
            &["chat", "Qwen/Qwen3.5-0.8B"],
            &["waterline pull Qwen/Qwen3.5-0.8B, then waterline chat hf:Qwen/Qwen3.5-0.8B"],
        ),
        (
            &["run", "unsloth/X-GGUF:Q4_K_M", "-p", "x"],
            &["waterline pull unsloth/X-GGUF, then waterline chat hf:unsloth/X-GGUF"],
        ),
        (
            &["https://huggingface.co/fla-hub/gla-1.3B"],
            &["waterline pull fla-hub/gla-1.3B,"],
        ),
        (
            &["run", "absent/below/m.gguf"],
            &["absent/below/m.gguf", "no such file"],
        ),
    ] {
        place.run(arguments).failed(2, parts);
    }
    let glued = place.run(["run", "x", "-n0"]);
    assert_eq!(glued.status, Some(2));
    assert!(glued.stderr.contains("1 or more"), "{}", glued.stderr);
}

#[test]
fn a_file_that_is_no_model_is_answered_with_the_one_that_is() {
    let place = Workplace::new();
    let folder = place.path("gdn");
    copy_fixture("gdn_plain", &folder);
    let folder = folder.display().to_string();
    let refused = |path: &str, parts: &[&str]| {
        place.run(["run", path, "-p", "x"]).failed(2, parts);
    };
    let give = format!("waterline chat {folder}");
    refused(
        &format!("{folder}/model.safetensors"),
        &["give the folder", &give],
    );
    refused(
        &format!("{folder}/config.json"),
        &["give the folder", &give],
    );
    place
        .run(["verify", &folder])
        .failed(2, &["no recorded case", "case.safetensors"]);
    let alone = place.file("alone.safetensors", "").display().to_string();
    refused(&alone, &["without its config.json", "hf download"]);

    let notes = place.file("notes.txt", "Dear diary").display().to_string();
    refused(
        &notes,
        &["no model", "GGUF", &format!("waterline run -f {notes}")],
    );
    let picture = place.file("picture", "\0PNG").display().to_string();
    refused(&picture, &["no model", "GGUF file"]);
    let empty = place.file("empty.gguf", "").display().to_string();
    refused(&empty, &["empty file", "GGUF file"]);
    std::fs::create_dir(place.path("photos")).unwrap();
    refused(&place.name("photos"), &["no model is in this folder"]);

    for (name, file) in [("torch", "pytorch_model.bin"), ("rwkv", "model.pth")] {
        std::fs::create_dir(place.path(name)).unwrap();
        place.file(&format!("{name}/config.json"), "{}");
        let file = place
            .file(&format!("{name}/{file}"), "pickle")
            .display()
            .to_string();
        for path in [&file, &place.name(name)] {
            refused(path, &["pickle", "save_pretrained"]);
        }
    }

    let model = place.model("gdn-tiny").display().to_string();
    refused(
        &place.home.path().display().to_string(),
        &[&format!("waterline chat {model}")],
    );
    let projector = place.path("mmproj-f16.gguf");
    let key = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let string = [
        &b"GGUF"[..],
        &3u32.to_le_bytes(),
        &[0; 8],
        &1u64.to_le_bytes(),
        &key("general.architecture"),
        &8u32.to_le_bytes(),
        &key("clip"),
    ];
    std::fs::write(&projector, string.concat()).unwrap();
    let projector = projector.display().to_string();
    refused(
        &projector,
        &["vision part", &format!("waterline chat {model}")],
    );
}

#[test]
fn what_is_left_out_is_filled_in() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    // If the first word is a model or a flag of `chat`, the command is `chat`.
    for arguments in [&[&model, "-n", "2"][..], &["-n", "2"]] {
        let mut command = place.command(arguments);
        let said = outcome_of_input(&mut command, b"Hello\n")
            .succeeded()
            .text();
        assert!(said.ends_with('\n'), "{said:?}");
    }
    // A word that is not a model is the prompt, with or without a model before it.
    let flags = ["--greedy", "-n", "4"];
    let run = |words: &[&str]| {
        let all = ["run"].iter().chain(words).chain(&flags);
        place.run(all).succeeded().text()
    };
    assert_eq!(run(&["Once upon"]), run(&["-p", "Once upon"]));
    assert_eq!(
        run(&[&model, "Once upon"]),
        run(&[&model, "-p", "Once upon"])
    );
    place
        .run(["run", &model])
        .failed(2, &["no prompt", &format!("waterline run {model}")]);
    assert_eq!(place.run(["run", &model, "a", "-p", "b"]).status, Some(2));
}

#[test]
fn flags_of_llama_cpp_are_understood() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let ours = "--context 1024 --threads 1 --temperature 0 --seed 1 --device cpu -n 3 -p hi --chat";
    let ours = place.run(["run", &model].into_iter().chain(ours.split(' ')));
    let ours = ours.succeeded().text();
    for (line, notes) in [
        ("run -m MODEL -c 1k -t 1 --temp 0 -s 1 -ngl 0 -n 3 -p hi", 1),
        ("-m MODEL -p hi --temp 0.5 --temp 0 -n 9 -n 3 -c 0 -s -1", 0),
        (
            "run MODEL hi -fa on --no-mmap --mlock -b 512 -ub 64 --jinja --greedy -n 3",
            6,
        ),
        (
            "run MODEL --temp 0 -n 3 hi --numa distribute -tb 4 --no-warmup -v",
            4,
        ),
    ] {
        let words = line
            .split(' ')
            .map(|word| if word == "MODEL" { &model } else { word });
        let theirs = place.run(words);
        assert_eq!(theirs.text(), ours, "{line}: {}", theirs.stderr);
        assert_eq!(
            theirs.stderr.matches("note: ").count(),
            notes,
            "{line}: {}",
            theirs.stderr
        );
    }
    // Without a limit the context becomes full.
    let model = place.model("transformer-tiny").display().to_string();
    let unlimited = [
        "run",
        &model,
        "x",
        "-n",
        "-1",
        "-c",
        "32",
        "--raw",
        "--ignore-eos",
    ];
    place.run(unlimited).failed(1, &["context is full"]);
}

#[test]
fn reasons_have_no_numbers_of_the_system() {
    let place = Workplace::new();
    let absent = place.name("absent/out.json");
    let words = [
        "bench", "--prompt", "4", "--gen", "1", "--depth", "0", "--json", &absent,
    ];
    let outcome = place.run(words);
    assert!(outcome.stderr.contains("absent"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("os error"), "{}", outcome.stderr);
}
