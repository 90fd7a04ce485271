// Tests the additions of waterline.hpp to waterline.h: handles that free themselves, and exceptions in both directions.
#include <iostream>
#include <stdexcept>
#include <type_traits>
#include <waterline.hpp>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::cerr << "line " << __LINE__ << ": " #condition "\n";                                                  \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static_assert(std::is_nothrow_move_constructible_v<waterline::Model> && !std::is_copy_constructible_v<waterline::Model>);
static_assert(std::is_nothrow_move_constructible_v<waterline::Session> &&
              !std::is_copy_constructible_v<waterline::Session>);

int main()
{
    auto model = waterline::Model::builtin();
    CHECK(model.info().vocab > 0 && model.spec_json().front() == '{' && !model.name().empty());
    const std::string text("na\xc3\xafve\0dog", 10);
    auto tokens = model.tokenize(text);
    CHECK(model.detokenize(tokens) == text && model.tokenize("").empty() && model.detokenize({}).empty());

    try {
        waterline::Model::open("absent.gguf");
        CHECK(false);
    } catch (const waterline::Error &error) {
        CHECK(error.status() == WL_ERROR_IO && std::string(error.what()).find("absent.gguf") != std::string::npos);
    }

    waterline::SamplerParams sampler;
    sampler.temperature = 0;
    waterline::SessionParams params;
    params.threads = 1;
    params.sampler = &sampler;
    waterline::Session session(model, params);
    session.feed(model.tokenize("Once upon a time"));
    CHECK(session.logits().size() == model.info().vocab && session.info().state_bytes == model.plan().state_bytes);

    // An exception in a callback propagates through the library's call, and the session can continue.
    waterline::GenerateParams limits;
    limits.max_tokens = 8;
    int pieces = 0;
    try {
        session.generate([&](std::string_view) -> bool { throw std::logic_error(std::to_string(++pieces)); }, limits);
        CHECK(false);
    } catch (const std::logic_error &error) {
        CHECK(pieces == 1 && error.what() == std::string("1"));
    }
    auto moved = std::move(session);
    auto state = moved.state();
    auto fork = moved.fork();
    std::string one, two, three;
    auto into = [](std::string &text) {
        return [&text](std::string_view piece) {
            text += piece;
            return true;
        };
    };
    CHECK(moved.generate(into(one), limits).finish == WL_FINISH_LENGTH);
    fork.generate(into(two), limits);
    fork.restore(state);
    fork.generate(into(three), limits);
    CHECK(!one.empty() && one == two && one == three);

    moved.set_messages({{"user", "My name is Bob."}, {"assistant", "Nice to meet you, Bob!"}});
    one.clear();
    moved.say("What is my name?", into(one));
    CHECK(one.find("Bob") != std::string::npos && moved.sampler().temperature == 0);
    uint64_t read = 0;
    moved.set_progress([](uint64_t now, uint64_t, void *user) { return *static_cast<uint64_t *>(user) = now, 0; }, &read);
    moved.feed(model.tokenize("Hello"));
    CHECK(read > 0);
    moved.set_progress(nullptr);

    moved.reset();
    moved.say("My name is Anna.", [](std::string_view) { return true; });
    one.clear();
    moved.say("What is my name?", into(one));
    CHECK(one.find("Anna") != std::string::npos);
    moved.undo();
    two.clear();
    moved.say("What is my name?", into(two));
    CHECK(one == two);

    // Tokens with their log-probabilities; a callback forbids the first token; exceptions propagate through the call.
    moved.reset();
    moved.feed(model.tokenize("Once upon a time"));
    auto other = moved.fork();
    std::vector<uint32_t> ids;
    limits.logprobs = 1;
    waterline::Session::Hooks hooks;
    hooks.on_token = [&](const waterline::Session::Token &token) {
        CHECK(token.logprob <= 0);
        ids.push_back(token.id);
        return true;
    };
    one.clear();
    moved.generate(into(one), limits, hooks);
    CHECK(ids.size() == 8 && model.detokenize(ids) == one);
    uint32_t first = ids[0];
    hooks.on_logits = [&](float *logits, size_t) { logits[first] = -1e30f; };
    ids.clear();
    auto third = other.fork();
    other.generate(into(two), limits, hooks);
    CHECK(ids.size() == 8 && ids[0] != first);
    hooks.on_logits = [](float *, size_t) { throw std::logic_error("logits"); };
    try {
        third.generate(into(two), limits, hooks);
        CHECK(false);
    } catch (const std::logic_error &error) {
        CHECK(error.what() == std::string("logits"));
    }

    // Answers generated together equal the answers generated alone.
    limits.logprobs = 0;
    const char *messages[] = {"My name is Anna.", "Tell me a story."};
    std::vector<waterline::Session> sessions;
    for (int i = 0; i < 2; i++)
        sessions.emplace_back(model, params);
    waterline::Batch batch(sessions[0], 2);
    std::vector<waterline::Session *> both{&sessions[0], &sessions[1]};
    CHECK(batch.step({}).empty());
    std::string answers[2];
    for (int i = 0; i < 2; i++) {
        sessions[i].thinking(-1);
        sessions[i].tools("[]");
        sessions[i].constrain(WL_CONSTRAINT_REGEX, "[a-z]*");
        sessions[i].constrain(WL_CONSTRAINT_NONE);
        sessions[i].start_answer(messages[i], limits);
    }
    for (bool more = true; more;) {
        auto texts = batch.generate(both);
        more = false;
        for (int i = 0; i < 2; i++) {
            answers[i] += texts[i];
            more |= texts[i].data() != nullptr;
        }
    }
    for (int i = 0; i < 2; i++) {
        waterline::Session alone(model, params);
        one.clear();
        alone.say(messages[i], into(one), limits);
        auto ended = waterline::with_size<wl_generate_result>();
        CHECK(one == answers[i] && sessions[i].next(&ended).data() == nullptr && ended.tokens > 0);
    }

    std::cout << failures << " failures\n";
    return failures != 0;
}
