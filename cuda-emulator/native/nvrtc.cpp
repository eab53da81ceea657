// A stand-in for libnvrtc whose compiler is a host C++ compiler. Its "cubin" and its "PTX" are the path of a shared
// object, which the stand-in for libcuda loads. Compilations are kept beside this library, by their content.
//
// NN_EMU_CXX names the compiler (g++), NN_EMU_CXXFLAGS adds options to it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace fs = std::filesystem;

extern char** environ;

namespace {

enum Result : int { SUCCESS = 0, PROGRAM_CREATION_FAILURE = 2, INVALID_INPUT = 3, COMPILATION = 6, INTERNAL = 11 };

struct Program {
  std::string name, source, log, image;
  std::vector<std::pair<std::string, std::string>> headers;
};

fs::path own_folder() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&own_folder), &info);
  return fs::path(info.dli_fname).parent_path();
}

std::string environment(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value ? value : otherwise;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// FNV-1a of 128 bits over parts, each with its length before it.
class Key {
  unsigned __int128 state = (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
  void byte(unsigned char b) {
    state = (state ^ b) * ((static_cast<unsigned __int128>(1) << 88) | 0x13b);
  }

 public:
  void add(const std::string& part) {
    for (size_t n = part.size(), i = 0; i < 8; i++, n >>= 8) byte(static_cast<unsigned char>(n));
    for (char c : part) byte(static_cast<unsigned char>(c));
  }
  std::string text() const {
    char hex[33];
    snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(state >> 64),
             static_cast<unsigned long long>(state));
    return hex;
  }
};

using Words = std::vector<std::string>;

Words split(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Runs a program in `folder` with its output in the file `log`; no shell is between, so nothing needs quotes.
bool run(const Words& words, const fs::path& folder, const fs::path& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = vfork();
  if (child < 0) return false;
  if (child == 0) {
    int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(output, 1);
    dup2(output, 2);
    if (chdir(folder.c_str()) == 0) execvp(arguments[0], arguments.data());
    dprintf(2, "cannot run %s\n", arguments[0]);
    _exit(127);
  }
  int status;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// What of NVRTC's options means something to a host compiler: constants and folders of headers.
bool translate(const Words& options, Words* flags) {
  for (size_t i = 0; i < options.size(); i++) {
    const std::string& option = options[i];
    auto after = [&](const char* prefix) { return option.substr(strlen(prefix)); };
    auto starts = [&](const char* prefix) { return option.rfind(prefix, 0) == 0; };
    auto value = [&](std::string text) {
      size_t start = text.find_first_not_of(' ');
      if (start != std::string::npos) return text.substr(start);
      return i + 1 < options.size() ? options[++i] : std::string();
    };
    std::string flag;
    if (starts("-D")) flag = "-D" + value(after("-D"));
    else if (starts("--define-macro=")) flag = "-D" + after("--define-macro=");
    else if (option == "--define-macro") flag = "-D" + value("");
    else if (starts("-U")) flag = "-U" + value(after("-U"));
    else if (starts("-I")) flag = "-I" + value(after("-I"));
    else if (starts("--include-path=")) flag = "-I" + after("--include-path=");
    else if (starts("-")) continue;
    else return false;
    flags->push_back(flag);
  }
  return true;
}

Words compiler() {
  Words words = split(environment("NN_EMU_CXX", "g++"));
  for (const char* flag :
       {"-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-zero-initialized-in-bss",
        "-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-strict-aliasing", "-ffp-contract=off",
        "-fsanitize=bounds,object-size,alignment,shift,integer-divide-by-zero", "-fno-sanitize-recover=all",
        "-U_FORTIFY_SOURCE", "-w"})
    words.push_back(flag);
#if __GNUC__ >= 12
  // A local variable that nobody has written is a huge number and not, by chance, 0.
  words.push_back("-ftrivial-auto-var-init=pattern");
#endif
  // For `fmaf`, which is a slow call without it.
  if (__builtin_cpu_supports("fma")) words.push_back("-mfma");
  for (const std::string& flag : split(environment("NN_EMU_CXXFLAGS", ""))) words.push_back(flag);
  return words;
}

bool write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return fs::exists(path);
}

Result compile(Program* program, const Words& options) {
  Words command = compiler(), flags;
  if (!translate(options, &flags)) return INVALID_INPUT;
  command.insert(command.end(), flags.begin(), flags.end());
  Key key;
  for (const std::string& word : command) key.add(word);
  key.add(program->name);
  key.add(program->source);
  for (auto& [name, text] : program->headers) key.add(name), key.add(text);

  fs::path cache = own_folder() / "kernels", object = cache / (key.text() + ".so");
  program->image = "nn-cuda-emulator:" + object.string();
  if (fs::exists(object)) return SUCCESS;
  fs::create_directories(cache);
  std::string unique = (cache / "tmp-XXXXXX").string();
  if (!mkdtemp(unique.data())) return INTERNAL;
  fs::path folder = unique, log = folder / "log";
  bool written = write(folder / program->name, program->source);
  for (auto& [name, text] : program->headers) written = written && write(folder / name, text);

  // The linker is called without `-fsanitize`: the checks report to the runtime and not to libubsan.
  Words link = split(environment("NN_EMU_CXX", "g++"));
  // Without start files, .bss holds what the kernel declares and no more.
  for (const char* word : {"-shared", "-nostartfiles", "kernel.o", "-o", "kernel.so"}) link.push_back(word);
  for (const std::string& word : {std::string("-I."), "-I" + own_folder().string(), std::string("-xc++"),
                                  std::string("-c"), program->name, std::string("-o"), std::string("kernel.o")})
    command.push_back(word);
  bool compiled = written && run(command, folder, log) && run(link, folder, log);
  program->log = read(log);
  // Two processes may compile the same kernel; either result will do.
  if (compiled) fs::rename(folder / "kernel.so", object);
  fs::remove_all(folder);
  return compiled ? SUCCESS : COMPILATION;
}

Program* program_of(void* handle) { return static_cast<Program*>(handle); }

Result copy(const std::string& text, char* to) { return memcpy(to, text.c_str(), text.size() + 1), SUCCESS; }

}  // namespace

// No version that there is: a cache of cubins that is keyed by it never mixes the two.
API Result nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 999, SUCCESS; }
API const char* nvrtcGetErrorString(Result error) {
  switch (error) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case INTERNAL: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR_UNKNOWN";
}
API Result nvrtcGetNumSupportedArchs(int* count) { return *count = 1, SUCCESS; }
API Result nvrtcGetSupportedArchs(int* archs) { return *archs = 90, SUCCESS; }

API Result nvrtcCreateProgram(void** handle, const char* source, const char* name, int count,
                              const char* const* headers, const char* const* names) {
  std::string file = fs::path(name ? name : "").filename().string();
  auto program = new Program{file.empty() ? "default_program" : file, source, "", "", {}};
  for (int i = 0; i < count; i++) program->headers.emplace_back(names[i], headers[i]);
  return *handle = program, SUCCESS;
}
API Result nvrtcDestroyProgram(void** handle) {
  delete program_of(*handle);
  return *handle = nullptr, SUCCESS;
}
API Result nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  try {
    return compile(program_of(handle), Words(options, options + count));
  } catch (const std::exception& error) {
    program_of(handle)->log = error.what();
    return INTERNAL;
  }
}
API Result nvrtcGetProgramLogSize(void* handle, size_t* bytes) {
  return *bytes = program_of(handle)->log.size() + 1, SUCCESS;
}
API Result nvrtcGetProgramLog(void* handle, char* to) { return copy(program_of(handle)->log, to); }
API Result nvrtcGetPTXSize(void* handle, size_t* bytes) {
  return *bytes = program_of(handle)->image.size() + 1, SUCCESS;
}
API Result nvrtcGetPTX(void* handle, char* to) { return copy(program_of(handle)->image, to); }
API Result nvrtcGetCUBINSize(void* handle, size_t* bytes) { return nvrtcGetPTXSize(handle, bytes); }
API Result nvrtcGetCUBIN(void* handle, char* to) { return nvrtcGetPTX(handle, to); }
