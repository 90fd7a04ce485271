//! The program from the outside: its output, where it writes it, and how it ends.

mod common;

use std::env::consts::EXE_SUFFIX;

use common::{Workplace, outcome_of_input};

const COMMANDS: [&str; 11] = [
    "chat",
    "run",
    "inspect",
    "convert",
    "quantize",
    "verify",
    "synth",
    "eval",
    "bench",
    "completions",
    "man",
];

#[test]
fn every_command_has_help() {
    let place = Workplace::new();
    for command in COMMANDS {
        let help = place.run([command, "--help"]).succeeded().text();
        assert!(
            help.contains(&format!("Usage: waterline{EXE_SUFFIX} {command}")),
            "{help}"
        );
    }
    let help = place.run(["--help"]).succeeded().text();
    assert!(
        COMMANDS.iter().all(|command| help.contains(command)) && help.contains("Exit status"),
        "{help}"
    );
    assert!(
        place
            .run(["--version"])
            .succeeded()
            .text()
            .starts_with("waterline ")
    );
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let place = Workplace::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(["completions", shell]).succeeded().text();
        assert!(COMMANDS.iter().all(|command| script.contains(command)));
        assert!(script.contains("temp"), "no flags for {shell}");
    }
    let unknown = place.run(["completions", "ash"]);
    assert!(unknown.status == Some(2) && unknown.stderr.contains("bash"));
    let folder = place.name("pages");
    place.run(["man", &folder]).succeeded();
    let page = |name: &str| std::fs::read_to_string(format!("{folder}/{name}.1")).unwrap();
    for command in COMMANDS {
        assert!(page("waterline").contains(command));
        assert!(page(&format!("waterline-{command}")).contains(".SH OPTIONS"));
    }
}

#[test]
fn bad_usage_is_status_2() {
    let place = Workplace::new();
    for arguments in [
        &["run", "--no-such-flag"][..],
        &["run", "-p", "x", "--top-k", "-3"],
        &["run", "-p", "x", "-f", "y"],
        &["synth", "no-such-preset", "--type", "f16", "-o", "x"],
        &["synth", "gdn-tiny", "--type", "q3_x", "-o", "x"],
        &["run", "-p", "x", "--threads", "99999999"],
        &["inspect", "--context", "many"],
    ] {
        let outcome = place.run(arguments);
        assert_eq!(outcome.status, Some(2), "{arguments:?}");
        let begin = outcome.stderr.split(": ").next();
        assert!(
            matches!(begin, Some("error" | "waterline")),
            "{}",
            outcome.stderr
        );
    }
    place.run(["run"]).failed(2, &["no prompt"]);
    for (flags, part) in [
        (["--temperature=-1", ""], "temperature"),
        (["--temperature", "-1"], "temperature: found -1"),
        (["--top-p", "-1"], "top_p: found -1"),
        (["--top-p", "2"], "top_p"),
        (["--min-p", "nan"], "min_p"),
        (["--logit-bias", "99999999=1"], "99999999"),
        (["--chunk", "65537"], "chunk"),
        (["--stop", ""], "stop"),
    ] {
        let flags = flags
            .into_iter()
            .take(1 + usize::from(!flags[0].contains('=')));
        place
            .run(["run", "-p", "x", "-n", "1"].into_iter().chain(flags))
            .failed(2, &[part]);
    }
}

#[test]
fn the_built_in_model_needs_no_argument() {
    let place = Workplace::new();
    let inspected = place.run(["inspect", "--json"]).succeeded().json();
    assert!(inspected["tokenizer"].as_bool().unwrap() && inspected["chat_template"].is_string());
    place.run(["run", "-p", "Hello", "-n", "2"]).succeeded();
}

#[test]
fn inspect_names_the_weights_that_are_not_finite() {
    let place = Workplace::new();
    let good = place.run(["inspect", "--check"]).succeeded().text();
    assert!(good.contains("are finite"), "{good}");
    let model = place.model("gdn-tiny");
    let mut content = std::fs::read(&model).unwrap();
    let first = content.len() - 8;
    content[first..first + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    content[first + 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&model, content).unwrap();
    let found = place.run(["inspect".as_ref(), model.as_os_str(), "--check".as_ref()]);
    assert_eq!((found.status, found.stderr.as_str()), (Some(1), ""));
    let text = found.text();
    assert!(
        text.contains("1 NaN and 1 infinite of 256 values, the first at [254]"),
        "{text}"
    );
}

#[cfg(unix)]
#[test]
fn no_output_goes_where_links_lead_in_a_circle() {
    let place = Workplace::new();
    let (a, b) = (place.path("a.gguf"), place.path("b.gguf"));
    std::os::unix::fs::symlink(&a, &b).unwrap();
    std::os::unix::fs::symlink(&b, &a).unwrap();
    let name = a.display().to_string();
    place
        .run(["synth", "gdn-tiny", "--type", "f32", "-o", &name])
        .failed(2, &["a.gguf", "symbolic links"]);
    assert!(std::fs::symlink_metadata(&a).unwrap().is_symlink());
}

#[test]
fn a_seed_makes_a_run_repeatable() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let run = |flags: &[&str]| {
        let all = ["run", &model, "-p", "Once upon a time", "-n", "24"]
            .into_iter()
            .chain(flags.iter().copied());
        place.run(all).succeeded().text()
    };
    assert_eq!(
        run(&["--greedy"]),
        run(&["--temperature", "0", "--seed", "5"])
    );
    let seeded = run(&["--seed", "1"]);
    assert_eq!(seeded, run(&["--seed", "1", "--threads", "1"]));
    assert_ne!(seeded, run(&["--seed", "2"]));
    // The chunk size of the prompt does not change the text.
    assert_eq!(run(&["--greedy"]), run(&["--greedy", "--chunk", "1"]));
}

#[test]
fn samples_are_what_runs_with_their_seeds_give() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let run = |flags: &[&str]| -> serde_json::Value {
        let all = [
            "run",
            &model,
            "-p",
            "Once upon a time",
            "-n",
            "24",
            "--json",
            "--raw",
        ]
        .into_iter()
        .chain(flags.iter().copied());
        let said = place.run(all).succeeded().text();
        serde_json::from_str(&said).expect("one JSON object")
    };
    let together = run(&["--samples", "3", "--seed", "7"]);
    let samples = together["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 3);
    for (sample, seed) in samples.iter().zip(7..) {
        let alone = run(&["--seed", &seed.to_string()]);
        for key in ["text", "tokens", "finish", "seed"] {
            assert_eq!(sample[key], alone[key], "{key} of seed {seed}");
        }
    }
}

#[test]
fn a_lookup_changes_no_token() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let run = |flags: &[&str]| {
        let prompt = "one two three, one two three, one two three, one";
        let all = ["run", &model, "-p", prompt, "-n", "60"];
        let all = all.into_iter().chain(flags.iter().copied());
        place.run(all).succeeded().text()
    };
    for flags in [
        &["--greedy"][..],
        &["--seed", "4"],
        &["--greedy", "--stop", "e"],
    ] {
        let with = [flags, &["--lookup", "8"]].concat();
        assert_eq!(run(flags), run(&with), "{flags:?}");
    }
}

#[test]
fn all_ways_to_give_a_prompt_and_to_print_agree() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let file = place
        .file("prompt.txt", "A dog and a ball")
        .display()
        .to_string();
    let flags = ["--raw", "--greedy", "-n", "20", "--ignore-eos"];
    let plain = place
        .run(
            ["run", &model, "-p", "A dog and a ball"]
                .into_iter()
                .chain(flags),
        )
        .succeeded()
        .text();
    assert_eq!(
        place
            .run(["run", &model, "-f", &file].into_iter().chain(flags))
            .succeeded()
            .text(),
        plain
    );
    for dash in [&["run", &model, "-"][..], &["run", &model, "-f", "-"]] {
        let mut command = place.command(dash.iter().copied().chain(flags));
        assert_eq!(
            outcome_of_input(&mut command, b"A dog and a ball")
                .succeeded()
                .text(),
            plain
        );
    }

    let json = place
        .run(
            ["run", &model, "-f", &file, "--json"]
                .into_iter()
                .chain(flags),
        )
        .succeeded()
        .json();
    assert_eq!(format!("{}\n", json["text"].as_str().unwrap()), plain);
    assert_eq!(
        (&json["tokens"], &json["finish"]),
        (&20.into(), &"length".into())
    );
    assert_eq!(
        json["position"].as_u64().unwrap(),
        20 + json["prompt_tokens"].as_u64().unwrap()
    );
    for number in [
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "ms_per_token",
        "state_bytes",
    ] {
        assert!(json[number].as_f64().unwrap() > 0.0, "{number}");
    }

    let stream = place
        .run(
            ["run", &model, "-f", &file, "--json-stream"]
                .into_iter()
                .chain(flags),
        )
        .succeeded()
        .text();
    let lines: Vec<serde_json::Value> = stream
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, pieces) = lines.split_last().unwrap();
    let joined: String = pieces
        .iter()
        .map(|piece| piece["text"].as_str().unwrap())
        .collect();
    assert_eq!(
        (&joined.as_str(), &summary["text"]),
        (&json["text"].as_str().unwrap(), &json["text"])
    );
    assert!(pieces.len() > 1);
}

#[test]
fn the_built_in_model_reads_standard_input_too() {
    let place = Workplace::new();
    let mut command = place.command(["run", "-", "-n", "2", "--ignore-eos", "--json"]);
    assert_eq!(
        outcome_of_input(&mut command, b"Hello").succeeded().json()["tokens"],
        2
    );
}

#[test]
fn a_stop_text_ends_the_output_before_it() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let run = [
        "run",
        &model,
        "-p",
        "Once",
        "-n",
        "40",
        "--greedy",
        "--ignore-eos",
        "--json",
        "--raw",
    ];
    let text = place.run(run).succeeded().json()["text"]
        .as_str()
        .unwrap()
        .to_string();
    let middle: String = text.chars().skip(30).take(9).collect();
    let stopped = place
        .run(
            run.into_iter()
                .chain(["--stop", "never said", "--stop", &middle]),
        )
        .succeeded()
        .json();
    assert_eq!(stopped["finish"], "stop");
    assert_eq!(stopped["text"].as_str(), text.split(&middle).next());
}

#[test]
fn chat_and_raw_prompts_differ_in_their_tokens() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let tokens = |flags: &[&str]| {
        let all = ["run", &model, "-p", "Hello", "-n", "1", "--json"]
            .into_iter()
            .chain(flags.iter().copied());
        place.run(all).json()["prompt_tokens"].as_u64().unwrap()
    };
    // The template of this tokenizer: <bos><user>...<assistant>. A program that reads JSON gets the text as it is.
    assert_eq!(tokens(&[]), tokens(&["--raw"]));
    assert_eq!(tokens(&["--raw"]), tokens(&["--no-bos"]) + 1);
    assert_eq!(tokens(&["--chat"]), tokens(&["--no-bos"]) + 3);
    // A person gets the template's.
    let shown = |flags: &[&str]| {
        let all = ["run", &model, "-p", "Hello", "-n", "1", "--show-prompt"];
        let all = all.into_iter().chain(flags.iter().copied());
        place.run(all).stderr
    };
    assert_eq!(shown(&[]), shown(&["--chat"]));
    assert_ne!(shown(&[]), shown(&["--raw"]));
    let both = ["run", &model, "-p", "Hello", "--raw", "--chat"];
    assert_eq!(place.run(both).status, Some(2));
}

#[test]
fn a_full_context_is_an_error_that_keeps_the_output() {
    let place = Workplace::new();
    let model = place.model("transformer-tiny").display().to_string();
    let run = |flags: &[&str]| {
        let all = [
            "run",
            &model,
            "-p",
            "one two three four",
            "--raw",
            "--greedy",
            "--ignore-eos",
        ]
        .into_iter();
        place.run(all.chain(flags.iter().copied()))
    };
    let free = run(&["-n", "64", "--json"]).succeeded().json();
    let prompt = free["prompt_tokens"].as_u64().unwrap();
    let context = (prompt + 10).to_string();

    let full = run(&["-n", "64", "--context", &context]).failed(
        1,
        &[
            "context is full",
            &context,
            "--on-full shift",
            "/undo",
            "/clear",
        ],
    );
    let kept = full.text();
    assert!(
        kept.trim_end().len() > 1
            && free["text"]
                .as_str()
                .unwrap()
                .starts_with(kept.trim_end_matches('\n')),
        "{kept}"
    );
    let full = run(&["-n", "64", "--context", &context, "--json"])
        .failed(1, &["context is full"])
        .json();
    assert_eq!(
        (&full["finish"], &full["tokens"]),
        (&"context".into(), &10.into())
    );
    assert!(full["error"].as_str().unwrap().contains("context is full"));
    run(&["-n", "10", "--context", &context]).succeeded();
    for how in ["shift", "compact"] {
        let on = run(&[
            "-n",
            "64",
            "--context",
            &context,
            "--on-full",
            how,
            "--json",
        ]);
        let on = on.succeeded().json();
        assert_eq!(
            (&on["finish"], &on["tokens"]),
            (&"length".into(), &64.into())
        );
        run(&[
            "-n",
            "9",
            "--context",
            "16",
            "--on-full",
            how,
            "--keep",
            "8",
        ])
        .failed(2, &["keep: found 8", "at most 7"]);
    }
    run(&["-n", "64", "--context", &context, "--context-shift"]).succeeded();

    let small = run(&["-n", "1", "--context", "3"]).failed(1, &["context is full"]);
    assert_eq!(small.text(), "");
    run(&["-n", "1", "--context", "1000000000000000"]).failed(2, &["context"]);

    // A state that does not grow has no such limit.
    let recurrent = place.model("lalte-tiny").display().to_string();
    place
        .run([
            "run",
            &recurrent,
            "-p",
            "one two three four",
            "-n",
            "64",
            "--context",
            "3",
            "--ignore-eos",
        ])
        .succeeded();
}

/// The source of a decode kernel has a named function for each op, and asserts the sizes of its parameters.
#[test]
fn inspect_prints_the_decode_kernel() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let source = ["inspect", &model, "--schedule", "--source"];
    let text = place.run(source).succeeded().text();
    for part in [
        "op_000_best_of_part()",
        "_recur_step() {",
        "sizeof(Rows) == 16",
    ] {
        assert!(text.contains(part), "{part}");
    }
}
