/* The program mlrbfn of the wheel: it loads the shared library of the package mlrbfn,
   which lies where the same Python has it, and runs its mlrbfn_main. */

#ifdef _WIN32

#include <stdio.h>
#include <wchar.h>
#include <windows.h>

typedef void (*program)(int, char **);

int main(void) {
    /* Scripts\mlrbfn.exe, Lib\site-packages\mlrbfn\mlrbfn.dll */
    static const wchar_t *places[] = {L"..\\Lib\\site-packages\\mlrbfn\\mlrbfn.dll", L"..\\site-packages\\mlrbfn\\mlrbfn.dll", L"..\\mlrbfn\\mlrbfn.dll"};
    static wchar_t self[32768], file[32768 + 64];
    DWORD n = GetModuleFileNameW(NULL, self, 32768);
    wchar_t *end = n > 0 && n < 32768 ? wcsrchr(self, L'\\') : NULL;
    if (end) {
        end[1] = 0;
        for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
            wcscpy(file, self);
            wcscat(file, places[i]);
            HMODULE library = LoadLibraryW(file);
            program run = library ? (program)(void *)GetProcAddress(library, "mlrbfn_main") : NULL;
            if (run) run(0, NULL); /* takes the process's own arguments, and ends it */
        }
    }
    fprintf(stderr, "mlrbfn: the library mlrbfn.dll of the Python package mlrbfn cannot be loaded; install the package again\n");
    return 1;
}

#else

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#define LIBRARY "libmlrbfn.dylib"
#else
#define LIBRARY "libmlrbfn.so"
#endif

/* From bin/: an environment, Debian's folder, a user's on a Mac, pip install --target. */
static const char *places[] = {"../lib/python3*/site-packages/mlrbfn/" LIBRARY, "../lib/python3*/dist-packages/mlrbfn/" LIBRARY,
                               "../lib64/python3*/site-packages/mlrbfn/" LIBRARY, "../lib/python/site-packages/mlrbfn/" LIBRARY, "../mlrbfn/" LIBRARY};

/* Writes the folder of the program, with its last slash, links resolved. */
static int folder(char *path) {
    char raw[PATH_MAX];
#ifdef __APPLE__
    uint32_t size = sizeof raw;
    if (_NSGetExecutablePath(raw, &size) != 0) return 0;
#else
    ssize_t n = readlink("/proc/self/exe", raw, sizeof raw - 1);
    if (n < 0) return 0;
    raw[n] = 0;
#endif
    if (!realpath(raw, path)) return 0;
    strrchr(path, '/')[1] = 0;
    return 1;
}

/* Writes a path so that glob takes it as it is. */
static void literally(char *to, const char *path) {
    for (; *path; path++) {
        if (strchr("*?[\\", *path)) *to++ = '\\';
        *to++ = *path;
    }
    *to = 0;
}

int main(int argc, char **argv) {
    char self[PATH_MAX], pattern[2 * PATH_MAX + 128];
    const char *why = "it is not beside the program";
    if (folder(self)) {
        literally(pattern, self);
        char *end = pattern + strlen(pattern);
        for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
            glob_t found;
            strcpy(end, places[i]);
            if (glob(pattern, 0, NULL, &found) != 0) continue;
            for (size_t j = found.gl_pathc; j-- > 0;) { /* the newest Python first */
                void *library = dlopen(found.gl_pathv[j], RTLD_NOW | RTLD_GLOBAL);
                void (*run)(int, char **) = NULL;
                if (library) *(void **)&run = dlsym(library, "mlrbfn_main");
                if (run) run(argc, argv); /* ends the process */
                why = dlerror();
            }
        }
    }
    fprintf(stderr, "mlrbfn: the library " LIBRARY " of the Python package mlrbfn cannot be loaded (%s); install the package again\n", why);
    return 1;
}

#endif
