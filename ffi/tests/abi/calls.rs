//! Tool calls and thoughts in answers, in C, C++ and Python.

use std::path::PathBuf;
use std::process::Command;

use waterline_quant::gguf::{Gguf, NewTensor, Value, Writer};

use crate::installed::{build, run, run_on, scratch, source, succeeds};
use crate::python::{library, python};

/// ChatML with a list of tools; `HOW` is a text of the format of calls.
const LISTS: &str = "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}HOW<|im_end|>\n{% endif %}\
    {% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content %}{{ message.content.split('</think>')[-1] }}\
    {% endif %}{% for call in message.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": \
    {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

/// A template that lists no tools, leaves the system message out and cuts long messages.
const MUTE: &str = "{% for message in messages if message.role != 'system' %}<|im_start|>{{ message.role }}\n{{ message.content[:99] }}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes the built-in model with another chat template.
fn model(name: &str, template: &str) -> PathBuf {
    let path = scratch("waterline-calls").join(format!("{name}.gguf"));
    let gguf = Gguf::open(source("../tools/model/waterline-chat.gguf")).expect("the model");
    let mut metadata = gguf.metadata().to_vec();
    metadata.retain(|(key, _)| key != "tokenizer.chat_template");
    let template = Value::String(template.into());
    metadata.push(("tokenizer.chat_template".into(), template));
    let tensors: Vec<NewTensor> = gguf
        .tensors()
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            format: tensor.format().expect("a known format"),
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut writer = Writer::create(&path, &metadata, &tensors).expect("a file");
    for tensor in &tensors {
        let data = gguf.tensor(&tensor.name).expect("a tensor").data;
        writer.write_tensor(&data).expect("its data");
    }
    writer.finish().expect("a complete file");
    path
}

/// Models with Hermes' format, Qwen3-Coder's format, and a template that cannot tell the model of tools.
fn models(test: &str) -> [PathBuf; 3] {
    let coder = "<tool_call>\\n<function=name>\\n<parameter=key>";
    [
        model(&format!("{test}-hermes"), &LISTS.replace("HOW", "")),
        model(&format!("{test}-coder"), &LISTS.replace("HOW", coder)),
        model(&format!("{test}-mute"), MUTE),
    ]
}

#[test]
fn c_programs_read_answers() {
    let program = build("cc", "tests/programs/calls.c");
    assert_eq!(
        run(Command::new(program).args(models("c")), ""),
        "0 failures\n"
    );
}

#[test]
fn cpp_programs_run_tools() {
    let program = build("c++", "tests/programs/calls.cpp");
    assert_eq!(
        run(Command::new(program).args(models("cpp")), ""),
        "0 failures\n"
    );
}

#[test]
fn python_programs_run_tools() {
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command
        .arg(source("tests/programs/calls.py"))
        .args(models("python"));
    assert_eq!(
        String::from_utf8_lossy(&succeeds(library(&mut command)).stdout),
        "all right\n"
    );
}

/// The built-in model calls no function, so its answer is text.
#[test]
fn the_example_with_tools_answers() {
    assert!(run_on(build("cc", "examples/c/tools.c"), "").trim().len() > 1);
}
