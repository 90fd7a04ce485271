// Checks the calls, parsers and renderings of waterline.hpp. The arguments are models whose templates have Hermes' format, Qwen3-Coder's
// format, and no way to tell the model of tools.
#include <iostream>
#include <stdexcept>
#include <waterline.hpp>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::cerr << "line " << __LINE__ << ": " #condition "\n";                                                  \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static const char *schema = R"({"type": "function", "function": {"name": "add", "description": "Adds.", "parameters":
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}})";

// The calls of parts, each as name and arguments, and "!" where a call ends.
static std::string calls_of(const std::vector<waterline::Part> &parts)
{
    std::string calls;
    for (const auto &part : parts) {
        if (part.kind == WL_PART_CALL_BEGINS || part.kind == WL_PART_CALL_ARGUMENTS)
            calls += part.text;
        if (part.kind == WL_PART_CALL_ENDS)
            calls += "!";
    }
    return calls;
}

static void streams(const waterline::Model &model, const std::string &call)
{
    waterline::AnswerParser parser(model, "[" + std::string(schema) + "]");
    std::vector<waterline::Part> parts;
    std::string content, thought, answer = "<think>Two numbers.</think>" + call;
    for (char letter : answer) {
        auto more = parser.push({&letter, 1});
        parts.insert(parts.end(), more.begin(), more.end());
    }
    auto rest = parser.finish();
    parts.insert(parts.end(), rest.begin(), rest.end());
    for (const auto &part : parts) {
        content += part.kind == WL_PART_CONTENT ? part.text : "";
        thought += part.kind == WL_PART_REASONING ? part.text : "";
    }
    CHECK(content.empty() && thought == "Two numbers." && parser.parts().empty());
    auto calls = calls_of(parts);
    CHECK(calls.rfind("add{", 0) == 0 && calls.back() == '!' && calls.find('2') != std::string::npos);
    CHECK(parser.json().find("\"tool_calls\"") != std::string::npos);

    // A call that a limit cuts does not end.
    waterline::AnswerParser cut(model, "[" + std::string(schema) + "]");
    parts = cut.push(call.substr(0, call.size() - 25));
    rest = cut.finish(true);
    parts.insert(parts.end(), rest.begin(), rest.end());
    calls = calls_of(parts);
    CHECK(calls.rfind("add", 0) == 0 && calls.back() != '!');
}

static void runs_tools(const waterline::Model &model)
{
    waterline::Session session(model);
    const char *call = R"(start: "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>")";
    session.constrain(WL_CONSTRAINT_LARK, call);
    waterline::GenerateParams limits;
    limits.max_tokens = 200;
    std::string arguments;
    int rounds = 0;
    waterline::Tool add{"add", schema, [&](const std::string &json) {
                            arguments = json;
                            if (++rounds == 2)
                                session.constrain(WL_CONSTRAINT_REGEX, "The sum is 5\\.");
                            return std::string("5");
                        }};
    std::string said;
    auto show = [&](const waterline::Part &part) { return said += part.kind == WL_PART_CONTENT ? part.text : "", true; };
    auto result = session.say_with_tools("How much is 2 + 3?", {add}, show, limits);
    CHECK(rounds == 2 && said == "The sum is 5." && result.finish == WL_FINISH_END);
    CHECK(arguments == R"({"a": 2, "b": 3})" || arguments == R"({"a":2,"b":3})");

    // The rounds are limited; an unknown function gets an error; a callback stops; exceptions propagate.
    session.constrain(WL_CONSTRAINT_LARK, call);
    rounds = 2;
    session.say_with_tools("And now?", {add}, {}, limits, 3);
    CHECK(rounds == 5);
    auto renamed = add;
    renamed.name = "subtract";
    session.say_with_tools("And now?", {renamed}, {}, limits, 1);
    CHECK(rounds == 5);
    auto stop = [](const waterline::Part &) { return false; };
    CHECK(session.say_with_tools("And now?", {add}, stop, limits).finish == WL_FINISH_CALLBACK && rounds == 5);
    add.call = [](const std::string &) -> std::string { throw std::logic_error("no numbers"); };
    try {
        session.say_with_tools("And now?", {add}, {}, limits);
        CHECK(false);
    } catch (const std::logic_error &error) {
        CHECK(error.what() == std::string("no numbers"));
    }
    CHECK(calls_of(session.parse("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>").parts()) == "add{}!");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    auto hermes = waterline::Model::open(argv[1]), coder = waterline::Model::open(argv[2]);
    streams(hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>");
    streams(coder, "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>");
    runs_tools(hermes);
    runs_tools(waterline::Model::builtin());

    waterline::RenderParams conversation;
    conversation.messages = R"([{"role": "user", "content": "Hi."}])";
    CHECK(hermes.render(conversation).find("Hi.") != std::string::npos);
    try {
        waterline::Session(waterline::Model::open(argv[3])).tools("[" + std::string(schema) + "]");
        CHECK(false);
    } catch (const waterline::Error &error) {
        CHECK(error.status() == WL_ERROR_TEXT);
    }
    auto info = hermes.info();
    CHECK(info.end_count > 0 && info.ends[0] < info.vocab);
    std::cout << failures << " failures\n";
    return failures != 0;
}
