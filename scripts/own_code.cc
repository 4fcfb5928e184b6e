// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Lets clang-tidy-14 walk through our own declarations only, not through those of the system's
// headers, in which it would report nothing. scripts/check-tidy.sh builds it and has clang-tidy
// load it.
#include <vector>

#include <clang-tidy/ClangTidyCheck.h>
#include <clang-tidy/ClangTidyModule.h>
#include <clang-tidy/ClangTidyModuleRegistry.h>
#include <clang/AST/ASTContext.h>
#include <clang/AST/Decl.h>
#include <clang/ASTMatchers/ASTMatchFinder.h>
#include <clang/ASTMatchers/ASTMatchers.h>
#include <clang/Basic/SourceManager.h>

namespace {

using clang::ast_matchers::MatchFinder;

class OwnCode : public clang::tidy::ClangTidyCheck {
  public:
    using ClangTidyCheck::ClangTidyCheck;

    void registerMatchers(MatchFinder* finder) override {
        finder->addMatcher(clang::ast_matchers::translationUnitDecl(), this);
    }

    // The unit is matched before its declarations are walked through.
    void check(const MatchFinder::MatchResult& unit) override {
        std::vector<clang::Decl*> own;
        for (clang::Decl* decl : unit.Context->getTranslationUnitDecl()->decls()) {
            if (!unit.SourceManager->isInSystemHeader(decl->getLocation())) own.push_back(decl);
        }
        unit.Context->setTraversalScope(own);
    }
};

class Module : public clang::tidy::ClangTidyModule {
  public:
    void addCheckFactories(clang::tidy::ClangTidyCheckFactories& factories) override {
        factories.registerCheck<OwnCode>("rvt-own-code");
    }
};

const clang::tidy::ClangTidyModuleRegistry::Add<Module> kModule("rvt", "");

}  // namespace
