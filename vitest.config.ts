import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["tests/widgets/js/**/*.test.ts"], watch: false },
});
