// Included before everything else (CMakeLists.txt): the templates of <sstream>, and only these, are instantiated in this
// library instead of taken from libstdc++.so. Constructors that torch's headers call came with GCC 9 (GLIBCXX_3.4.26), and
// manylinux_2_28 ends with GCC 8's. A static libstdc++ would serve, but exceptions would be thrown by one copy of the C++
// runtime and caught by another.
#pragma once

// The headers below <sstream> keep libstdc++.so's instances: a locale finds its facets by the addresses of their ids.
#include <istream>
#include <ostream>
#include <string>

#ifdef _GLIBCXX_EXTERN_TEMPLATE
#pragma push_macro("_GLIBCXX_EXTERN_TEMPLATE")
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#pragma pop_macro("_GLIBCXX_EXTERN_TEMPLATE")
#endif
