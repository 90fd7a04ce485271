// What waterline.hpp adds to waterline.h: handles that free themselves, exceptions both ways.
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

    // An exception leaves a callback through the library's call, and the session can go on.
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

    std::cout << failures << " failures\n";
    return failures != 0;
}
